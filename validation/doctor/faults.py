"""Known faults of NCCL by version and machine (`faults.toml`): what each costs, and the thread that says so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.schema import Items, Number, Table, Text
from prestep.sim.units import parse_bytes
from prestep.validation.doctor.sweep import Change, Expected, Situation
from prestep.validation.formats.collective_rows import Row

FILE = Path(__file__).parent / "faults.toml"


@dataclass(frozen=True)
class Fault:
    """One known fault: where it holds, and how many times as long a row takes with it."""

    name: str
    title: str
    url: str
    avoid: str
    gpus: Sequence[str]
    ops: Sequence[str]
    least: str
    slows: float
    hosts: int
    per_host: int = 0
    since: str = "0"
    before: str = ""

    def holds(self, here: Situation) -> bool:
        """Whether the version and the GPUs are those of the fault."""
        version = _numbers(here.nccl.version)
        late = self.before and version >= _numbers(self.before)
        return (
            here.fabric.gpu_model in self.gpus
            and _numbers(self.since) <= version
            and not late
        )

    def factor(self, row: Row, expected: Expected) -> float:
        """How many times as long as it should a row takes."""
        touched = (
            row.op in self.ops
            and row.size >= parse_bytes(self.least)
            and (row.hosts or 1) >= self.hosts
            and self.per_host in (0, row.per_host)
        )
        return self.slows if touched else 1.0

    @property
    def text(self) -> str:
        return f"{self.title} ({self.url}); mended by {self.avoid}"


_FAULT = Table(
    {
        **dict.fromkeys(("title", "url", "avoid", "least", "since", "before"), Text()),
        **dict.fromkeys(("gpus", "ops"), Items(Text())),
        "slows": Number(low=1.0, above=True),
        **dict.fromkeys(("hosts", "per_host"), Number(low=1, whole=True)),
    },
    needed=("title", "url", "avoid", "gpus", "ops", "least", "slows", "hosts"),
)


def changes(here: Situation) -> tuple[Change, ...]:
    """The faults that touch a row of what was measured."""
    return tuple(_changes(here))


def _changes(here: Situation) -> Iterator[Change]:
    for fault in known_faults():
        if fault.holds(here):
            yield Change(fault.text, slows=fault.factor)


@lru_cache(maxsize=1)
def known_faults() -> tuple[Fault, ...]:
    """Every fault of the table, in its order.

    Raises
    ------
    InputError
        With every mistake in it.

    Examples
    --------
    >>> known_faults()[0].name
    'nvlstree-b300'
    """
    return tuple(
        Fault(name, **table) for name, table in schema.rows(FILE, _FAULT).items()
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
