"""The machines of published nccl-tests measurements: which cluster a hardware text stands for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lab import CASES
from prestep.sim.errors import InputError, Mistake, unknown

MACHINES = CASES / "published-collectives" / "machines.toml"


@dataclass(frozen=True)
class Machine:
    """What a hardware text stands for.

    Attributes
    ----------
    name : str
        Group to report its rows in.
    hardware : str
        Regular expression that matches the whole text.
    source : str
        Part of the source's name, where texts of two sources are alike.
    settings : str
        Regular expression that matches the whole text of the settings.
    cluster : str
        Name or file of the cluster; "": none yet, and `reason` says so.
    one_host : str
        The cluster for rows of one host, where it is another.
    per_host : int
        GPUs of a host.
    nccl : str
        Version where the row says none.
    version : str
        Version whatever the row says: its times are those of another release than its label names.
    fitted_nodes : tuple of int
        Node counts that constants were fitted to.
    env : mapping
        Variables that the source says in words.
    tuner : str
        Amazon's plug-in ran: the machine that it knows (`[nccl] tuner`).
    alone : bool
        Whether calls through PyTorch were timed one by one.
    launches : int
        GPUs of one process, where the row's settings do not say it (-g).
    """

    name: str
    hardware: str
    per_host: int
    source: str = ""
    settings: str = ".*"
    cluster: str = ""
    one_host: str = ""
    reason: str = ""
    nccl: str = ""
    version: str = ""
    fitted_nodes: tuple[int, ...] = ()
    env: Mapping[str, str] | None = None
    tuner: str = ""
    alone: bool = False
    launches: int = 1
    note: str = ""


@lru_cache(maxsize=1)
def machines() -> tuple[Machine, ...]:
    """The table of machines, in the order of the file: the first that fits is taken.

    Raises
    ------
    InputError
        For a key that does not exist, or none that is needed.
    """
    tables = tomllib.loads(MACHINES.read_text(encoding="utf-8"))
    mistakes = [
        mistake
        for name, table in tables.items()
        for mistake in _wrong_keys(name, table)
    ]
    InputError.check(mistakes)
    return tuple(_machine(name, table) for name, table in tables.items())


def _machine(name: str, table: Mapping[str, Any]) -> Machine:
    """One machine of the file."""
    fitted = {"fitted_nodes": tuple(table.get("fitted_nodes", ()))}
    return Machine(name=name, **{**table, **fitted})


def _wrong_keys(name: str, table: Mapping[str, Any]) -> Iterator[Mistake]:
    """Keys of a machine that do not exist, and those that it needs and lacks."""
    keys = Machine.__dataclass_fields__
    for key in table:
        if key not in keys:
            yield unknown(MACHINES.name, f"{name}.{key}", key, keys)
    for key in ("hardware", "per_host"):
        if key not in table:
            yield Mistake(MACHINES.name, f"{name}.{key}", "nothing", "a value")


def machine_of(record: Mapping[str, str]) -> Machine | None:
    """The first machine that fits a row of a CSV file."""
    return next((machine for machine in machines() if _fits(machine, record)), None)


def _fits(machine: Machine, record: Mapping[str, str]) -> bool:
    """Whether the texts of a row are those of a machine."""
    patterns = {"hardware": machine.hardware, "settings": machine.settings}
    matches = all(
        re.fullmatch(pattern, record[column]) for column, pattern in patterns.items()
    )
    return matches and machine.source in record["source"]
