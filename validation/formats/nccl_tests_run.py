"""What a log of nccl-tests says of its run, and its times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prestep.sim.errors import InputError, Mistake

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}


SIDES = ("out_of_place", "in_place")


class Timing(NamedTuple):
    """One time of a log: its line, bytes, out of place or in place, s."""

    line: int
    size: int
    side: str
    time: float


@dataclass
class Run:
    """What a log says before its rows; `places` are (rank, host) of its devices."""

    op: str = ""
    ranks: int = 0
    hosts: int = 1
    version: str | None = None
    gpu: str = ""
    env: dict[str, str] = field(default_factory=dict)
    places: set[tuple[str, str]] = field(default_factory=set)


class Parsed(NamedTuple):
    """What a log says: its run, its times, and what is wrong with the lines that could not be read."""

    run: Run
    timings: list[Timing]
    mistakes: list[Mistake]


def named(text: str) -> str:
    """The operation that a program's or file's name holds, the longest that fits."""
    fits = [name for name in OPS if name in text.lower()]
    return OPS[max(fits, key=len)] if fits else ""


def version(code: int) -> str:
    """22809 -> 2.28.9 (NCCL_VERSION_CODE since 2.9)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


LEAST = 1e-3  # microseconds: no clock of a GPU is finer


def us(value: Any, key: str, where: str) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not (math.isfinite(time) and time >= LEAST):
        expected = f"microseconds, more than 0, at least {LEAST:g}"
        raise InputError(Mistake(where, key, repr(value), expected))
    return time * 1e-6
