"""A sweep over sizes in the columns of nccl-tests."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim.collectives import backends, machine, uneven
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.interval import Interval, interval_of
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.nccl.tuner import Candidate, candidates
from prestep.sim.collectives.plan import Plan, check, nccl_of
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires.network import INSIDE
from prestep.sim.errors import InputError, Mistake
from prestep.sim.exchanges.bound import Bounds
from prestep.sim.units import format_bytes

# Operations whose size is n parts.
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
# How many times as fast something else has to be that NCCL could have chosen, to be named.
CLEARLY = 1.05


@dataclass(frozen=True, eq=False)
class Row:
    """One size; `algbw` and `busbw` are bytes/s, `bottleneck` the link or limit that decides.

    `plan` and `time` are those of one call among many in one stream, as nccl-tests times them; `time_in_step` is that
    of a program's own call, which waits for another stream twice. `faster` is what NCCL could have chosen and would
    take less time, by what prestep predicts: NCCL goes by tables of its own.
    """

    plan: Plan
    time: float
    time_in_step: float
    algbw: float
    busbw: float
    bottleneck: str
    candidates: tuple[Candidate, ...] = ()
    faster: Plan | None = None
    interval: Interval | None = (
        None  # none for what was never measured: Gloo and one-sided puts
    )

    def _faster(self) -> dict[str, Any] | None:
        """What would have been faster, by name."""
        other = self.faster
        if other is None:
            return None
        return {key: getattr(other, key) for key in ("algo", "proto", "channels")}

    def to_json(self, explain: bool = False) -> dict[str, Any]:
        """Plain values in SI units; `explain` adds what NCCL compared."""
        p = self.plan
        compared = (
            {
                # JSON has no infinity.
                "rate": p.rate_cap if math.isfinite(p.rate_cap) else None,
                "candidates": [c._asdict() for c in self.candidates],
            }
            if explain
            else {}
        )
        return {
            "op": p.op,
            "bytes": int(p.size),
            "time": self.time,
            "nccl_tests_time": self.time,
            "time_in_step": self.time_in_step,
            "algbw": self.algbw,
            "busbw": self.busbw,
            "algo": p.algo,
            "proto": p.proto,
            "channels": p.channels,
            "latency": p.latency,
            "evidence": p.evidence,
            "bottleneck": self.bottleneck,
            "notes": list(p.notes),
            "faster": self._faster(),
            "interval": self.interval.to_json() if self.interval else None,
        } | compared


@dataclass(frozen=True)
class _Task:
    """One size of one operation, to be planned on any fabric."""

    op: str
    size: float
    group: tuple[str, ...]
    settings: Nccl
    shares: np.ndarray | None = None

    def in_step(self, fabric: Any) -> Plan:
        """The plan of a program's own call, with even messages or with those of a file."""
        if self.shares is None:
            return plan_collective(
                self.op, self.size, self.group, fabric, self.settings
            )
        return uneven.plan(self.size, self.group, fabric, self.settings, self.shares)

    def tested(self, fabric: Any) -> Plan:
        """The plan as nccl-tests times it."""
        return self.as_tested(self.in_step(fabric), fabric)

    def as_tested(self, plan: Plan, fabric: Any) -> Plan:
        """`plan` where no other library's calls wait for NCCL's stream."""
        nccl = self.settings.backend == "nccl"
        return machine.as_tested(plan, fabric) if nccl else plan

    def faster(self, fabric: Any, plan: Plan) -> Plan | None:
        """The fastest of what NCCL did not choose, if it takes clearly less time than its choice, `plan`."""
        settings = self.settings
        if settings.backend != "nccl" or settings.algo or settings.proto:
            return None
        if set(fabric.links.kinds_on(plan.links)) <= INSIDE:
            return None  # in a host NCCL's tables were fitted to what is there
        compared = [
            _forced(settings, one.algo, one.proto)
            for one in candidates(self.op, self.size, self.group, fabric, settings)
        ]
        others = compared[1:]  # the first is NCCL's choice
        # Fast links need few channels in NCCL's search, but a channel carries only so much.
        most = min(2 * plan.channels, settings.most_channels)
        if settings.min_channels is None and most > self._fewest(fabric):
            others += [_with_channels(one, most) for one in compared]
        plans = [replace(self, settings=other).tested(fabric) for other in others]
        best = min(plans, key=lambda one: _seconds(one, fabric), default=plan)
        clear = _seconds(best, fabric) < _seconds(plan, fabric) / CLEARLY
        return best if clear else None

    def _fewest(self, fabric: Any) -> int:
        """Channels that the communicator has anyway: to ask for no more changes no plan."""
        group = group_of(fabric, self.group, self.settings)
        graph = search(group, fabric.gpu_model, self.settings, fabric)
        return min(graph.channels, graph.nvls_channels or graph.channels)


@lru_cache(maxsize=256)
def _forced(settings: Nccl, algo: str, proto: str) -> Nccl:
    """The settings with a forced algorithm and protocol: the same for every size."""
    return nccl_of(vars(settings) | {"algo": algo, "proto": proto})


@lru_cache(maxsize=256)
def _with_channels(settings: Nccl, least: int) -> Nccl:
    """The settings with so many channels at least: the same for every size."""
    return replace(settings, min_channels=least)


def _seconds(plan: Plan, fabric: Any) -> float:
    return plan.duration(fabric.links.bandwidth)


def bus_factor(op: str, n: int) -> float:
    """busbw over algbw, as nccl-tests defines it."""
    if op == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if op in SHARED else 1.0


def sweep(
    fabric: Any,
    *,
    op: str = "all_reduce",
    ranks: int | None = None,
    min_bytes: float = 8,
    max_bytes: float = 2.0**32,
    algo: str | None = None,
    proto: str | None = None,
    channels: int | None = None,
    nccl: Nccl | None = None,
    gpus: Sequence[str] = (),
    explain: bool = False,
    counts: Path | None = None,
) -> list[Row]:
    """Sizes from `min_bytes` to `max_bytes`, each twice the one before, on the first `ranks` GPUs, or on `gpus`.

    `nccl` has the settings; `algo`, `proto` and `channels` replace theirs. Sizes are rounded down as nccl-tests does.
    `explain` adds what NCCL compared. `counts` is a file of what each rank of an all-to-all sends to each other.

    Raises
    ------
    InputError
        For sizes in the wrong order, more ranks than GPUs, or what NCCL does not have.
    """
    settings = _settings(nccl, algo, proto, channels)
    backends.check(settings.backend, op)
    _check(fabric, ranks, min_bytes, max_bytes)
    group = tuple(gpus) or fabric.gpus[: ranks or len(fabric.gpus)]
    # As nccl-tests steps with -f 2.
    sizes = [min_bytes]
    while sizes[-1] * 2 <= max_bytes:
        sizes.append(sizes[-1] * 2)
    shares = None if counts is None else _shares(op, counts, group, settings)
    bounds = Bounds(fabric)
    rows = [_row(op, size, group, bounds, settings, shares) for size in sizes]
    if explain and settings.backend == "nccl":
        return [_compared(row, group, fabric, settings) for row in rows]
    return rows


def _shares(op: str, counts: Path, group: Sequence[str], settings: Nccl) -> np.ndarray:
    """What each rank sends to each other, of what one sends on average."""
    if op != uneven.OP or settings.backend != "nccl":
        found = f"{op} with {settings.backend}"
        expected = f"{uneven.OP} with nccl: others have messages of one size"
        raise InputError.of("command line", "--counts", found, expected)
    return uneven.read(counts, len(group))


def _compared(row: Row, group: Sequence[str], fabric: Any, settings: Nccl) -> Row:
    """The row with everything that NCCL compared for it."""
    compared = candidates(row.plan.op, row.plan.size, group, fabric, settings)
    return replace(row, candidates=tuple(compared))


def _check(fabric: Any, ranks: int | None, min_bytes: float, max_bytes: float) -> None:
    """Raises what is wrong with the sizes and the number of ranks."""
    where, mistakes = "command line", []
    if not 0 < min_bytes <= max_bytes:
        smallest, largest = format_bytes(min_bytes), format_bytes(max_bytes)
        expected = f"more than 0, at most {largest}"
        mistakes.append(Mistake(where, "--min-bytes", smallest, expected))
    if ranks is not None and ranks > len(fabric.gpus):
        expected = f"at most the {len(fabric.gpus)} GPUs of {fabric.name}"
        mistakes.append(Mistake(where, "--ranks", str(ranks), expected))
    if mistakes:
        raise InputError(mistakes)


def _settings(
    nccl: Nccl | None, algo: str | None, proto: str | None, channels: int | None
) -> Nccl:
    """The settings, with what options say laid over them and checked."""
    options = {
        "algo": algo,
        "proto": proto,
        "min_channels": channels,
        "max_channels": channels,
    }
    overrides = {name: value for name, value in options.items() if value is not None}
    nccl = nccl or Nccl()
    check(nccl, "--set")
    return nccl_of(vars(nccl) | overrides, "command line")


def rounded(op: str, size: float, n: int) -> tuple[float, str]:
    """The size nccl-tests would run, and what to say about it: elements of 4 bytes, parts of a multiple of 16.

    A size of which nothing would be left is kept: nccl-tests has no such row.
    """
    unit = 16 * n if op in SHARED else 4
    fits = math.floor(size / unit) * unit
    if fits == size or op in ("put", "get"):
        return size, ""
    parts = f"{n} parts of a multiple of 16 B" if op in SHARED else "elements of 4 B"
    if fits:
        return float(fits), f"sizes are rounded down to {parts}, as nccl-tests does"
    return (
        size,
        f"below {unit} B nccl-tests has nothing to send ({parts}): predicted as asked",
    )


def _row(
    op: str,
    asked: float,
    group: Sequence[str],
    bounds: Bounds,
    settings: Nccl,
    shares: np.ndarray | None = None,
) -> Row:
    size, note = rounded(op, asked, len(group))
    task = _Task(op, size, tuple(group), settings, shares)
    fabric = bounds.fabric
    own = task.in_step(fabric)
    plan = task.as_tested(own, fabric)
    plan = replace(plan, notes=(*plan.notes, note)) if note else plan
    time = _seconds(plan, fabric)
    return Row(
        plan,
        time,
        _seconds(own, fabric),
        size / time,
        size / time * bus_factor(op, len(group)),
        bounds.of(plan, task.tested),
        faster=task.faster(fabric, plan),
        interval=interval_of(plan, fabric) if settings.backend == "nccl" else None,
    )


def short(link: str) -> str:
    """A link by its ends, without the hosts and units they are in: `nic0-leaf0`; JSON has the whole name."""
    return re.sub(r"[^-\s]*/", "", link)
