"""Measured training steps: the JSON lines that the harness writes, one row a case."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.validation.formats.records import is_positive, read_lines, text_of, whole

# What a case may say that changes neither the step nor how it is predicted.
BOOKKEEPING = frozenset({"id", "trace", "trace_steps", "steps", "warmup"})
_FAMILY_OF_MODEL = {"moe": "moe", "resnet": "cnn", "seedmlp": "mlp"}
# The mode with the most of its own mechanism names the family: DTensor for fsdp x tp, the schedule for pp x dp.
_FAMILY_OF_MODE = {"ddp_nooverlap": "ddp", "fsdptp": "tp", "ppdp": "pp"}


@dataclass(frozen=True)
class Row:
    """One measured case.

    Attributes
    ----------
    where : str
        File and line.
    case : mapping
        Configuration, as the harness was given it.
    world : int
        GPUs.
    env : mapping
        Environment variables that were set for the run.
    cluster : mapping
        Keys of a scenario's [cluster] that describe the machine of this run.
    steps : mapping
        Seconds of each step by rank.
    cpu_steps : mapping
        Seconds for which Python was busy or blocked in each step, by rank.
    peak_memory : mapping
        Peak allocated bytes by rank.
    error : str
        Why there is no measurement; then `steps` is empty.
    """

    id: str
    where: str
    case: Mapping[str, Any]
    world: int
    label: str = "default"
    env: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    cpu_steps: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    peak_memory: Mapping[int, float] = field(default_factory=dict)
    reserved: float = 0.0
    error: str = ""

    @property
    def name(self) -> str:
        """The id, with the label where the run was not an ordinary one."""
        return self.id if self.label == "default" else f"{self.id}@{self.label}"

    @property
    def measured(self) -> float:
        """Median over all ranks and steps, s."""
        return statistics.median(
            time for times in self.steps.values() for time in times
        )

    @property
    def family(self) -> str:
        """What the step has most of its own: its model or its parallelism; of a program its framework."""
        if "fw" in self.case:
            return str(self.case["fw"])
        if "prog" in self.case:
            return str(self.case["prog"]).partition(":")[0]
        model, mode = str(self.case.get("model", "")), str(self.case.get("mode", ""))
        by_model = [
            family
            for prefix, family in _FAMILY_OF_MODEL.items()
            if model.startswith(prefix)
        ]
        return by_model[0] if by_model else _FAMILY_OF_MODE.get(mode, mode)


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a file of JSON lines, in order; a row that holds an error has `error` and no steps.

    Raises
    ------
    InputError
        With every line that cannot be read.
    """
    path, rows = Path(path), list[Row]()
    text = text_of(path, "rows of measurements (JSON lines)")
    read_lines(
        text, path.name, lambda record, where: rows.append(row_of(record, where))
    )
    return rows


def row_of(record: object, where: str) -> Row:
    """The row of one JSON object."""
    if not isinstance(record, Mapping):
        raise InputError.of(where, "", type(record).__name__, "an object")
    identity = str(record.get("id", where))
    if "step_s_by_rank" not in record:
        return _failed(record, identity, where)
    case, world = _configuration(record, where)
    env = _object(record, "env", where)
    peaks = _object(record, "peak_alloc_by_rank", where)
    return Row(
        identity,
        where,
        case,
        world,
        label=str(record.get("label", "default")),
        env={str(key): str(value) for key, value in env.items()},
        cluster=_cluster(record.get("cluster"), where),
        steps=_steps(record["step_s_by_rank"], where),
        cpu_steps=_cpu_steps(record, where),
        peak_memory={
            whole({"rank": _digits(rank)}, "rank", where, 0): _bytes(peaks, rank, where)
            for rank in peaks
        },
        reserved=_bytes(record, "peak_reserved", where),
    )


def _object(record: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """A table of a record; empty where it has none."""
    value = record.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError.of(where, key, repr(value)[:60], "an object")
    return value


def _bytes(record: Mapping[str, Any], key: str, where: str) -> float:
    """A size; 0 where it was not measured."""
    value = record.get(key) or 0.0
    if value and not is_positive(value):
        raise InputError.of(where, str(key), repr(value)[:60], "bytes")
    return float(value)


def _digits(text: str) -> int | None:
    """The number of a rank; None of what is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) else None


def _configuration(
    record: Mapping[str, Any], where: str
) -> tuple[Mapping[str, Any], int]:
    """What ran, and on how many GPUs."""
    case, world = record.get("case"), record.get("world")
    if not isinstance(case, Mapping):
        expected = "the configuration, an object"
        raise InputError.of(where, "case", repr(case), expected)
    if not isinstance(world, int) or isinstance(world, bool) or world < 1:
        raise InputError.of(where, "world", repr(world), "the number of GPUs")
    return case, world


def _failed(record: Mapping[str, Any], identity: str, where: str) -> Row:
    """The row of a run that ended without a measurement."""
    error = record.get("error")
    if error is None:
        expected = "seconds of each step by rank, or error"
        raise InputError.of(where, "step_s_by_rank", "nothing", expected)
    world = whole({"world": 0, **record}, "world", where, 0)
    case = _object(record, "case", where)
    return Row(identity, where, case, world, error=str(error).strip())


def _cluster(value: object, where: str) -> Mapping[str, Any]:
    """Keys of a scenario's [cluster]: an object, or the name or file of a cluster."""
    if isinstance(value, str) and value:
        return {"file" if value.endswith(".toml") else "name": value}
    if value is None or isinstance(value, Mapping):
        return value or {}
    expected = "a cluster's name or file, or an object with keys of [cluster]"
    raise InputError.of(where, "cluster", repr(value), expected)


def _steps(
    by_rank: object, where: str, name: str = "step_s_by_rank"
) -> dict[int, tuple[float, ...]]:
    """Seconds of each step by rank."""
    if not isinstance(by_rank, Mapping) or not by_rank:
        expected = "seconds of each step by rank"
        raise InputError.of(where, name, repr(by_rank), expected)
    for rank, times in by_rank.items():
        if not (re.fullmatch(r"\d{1,7}", str(rank)) and _are_times(times)):
            key = f"{name}.{rank}"
            expected = "positive seconds, by number of rank"
            raise InputError.of(where, key, repr(times)[:60], expected)
    return {int(rank): tuple(map(float, times)) for rank, times in by_rank.items()}


def _cpu_steps(record: Mapping[str, Any], where: str) -> dict[int, tuple[float, ...]]:
    """Seconds of Python in each step by rank; nothing where nobody measured them."""
    by_rank = record.get("cpu_step_s_by_rank")
    return {} if by_rank is None else _steps(by_rank, where, "cpu_step_s_by_rank")


def _are_times(times: object) -> bool:
    """Whether a value is a list of positive numbers."""
    if not isinstance(times, list) or not times:
        return False
    return all(map(is_positive, times))
