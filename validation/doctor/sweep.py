"""Measured sizes beside what a cluster should take for them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from prestep.sim.collectives import machine
from prestep.sim.collectives.interval import (
    NETWORK,
    SHAPED,
    latency_share,
    place_of,
    spread,
)
from prestep.sim.collectives.plan import Plan, nccl_of
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.exchanges.table import bus_factor
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.formats.collective_rows import IN_PLACE, TESTED, Row, members
from prestep.validation.sets.predict_collective import called, gpus_of

HOST = "host"
# Constants of a GPU were fitted on one host: another host of the kind is off as those of another GPU are.
INSIDE = "guess"
LATENCY, BANDWIDTH, LARGE = "latency", "bandwidth", "large"
#: From so many bytes on, and up to so many hosts, good networks are off by little: protocols are settled, pipelines
#: full, and few switches shared.
LARGE_BYTES, FEW_HOSTS = 2**28, 16
#: Rows of a trace; kernels beside a transfer slow it by up to a fifth (`sim/replay/network.py`), at nine in ten.
RECORDED, BESIDE = "trace", 0.12
# Transfers between many pairs at a time, which have no ring or tree.
PAIRS = ("all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class Change:
    """One way in which a cause shows.

    Attributes
    ----------
    links : mapping
        Changes of links and GPUs, as `--set` takes them.
    nccl : mapping
        Settings of NCCL.
    slows : callable or None
        How many times as long a row takes; None: as it is predicted with the changes.
    local : bool
        Whether it is in one host: what ran on others is as it should be.
    by_row : callable or None
        Settings of NCCL that each row has of its own.
    """

    text: str
    links: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, Any] = field(default_factory=dict)
    slows: Callable[[Row, Expected], float] | None = None
    local: bool = False
    by_row: Callable[[Row], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Expected:
    """What one size should take: seconds, NCCL's choice, and how far good machines are off.

    Attributes
    ----------
    spread : float
        Standard deviation of the logarithm of the time, for machines that no constant was fitted to.
    place : str
        Whose spread it is: `host`, `network`, `network, pairs` or `shaped` (the emulated network).
    part : str
        What bounds the time: `latency`, `bandwidth` or (of large sizes on few hosts) `large`.
    """

    time: float
    spread: float
    place: str
    part: str
    algo: str
    proto: str
    channels: int


@dataclass(frozen=True)
class Size:
    """One size of a sweep: the middle of its measured times (s), what it should take, and nccl-tests' busbw."""

    size: int
    measured: float
    expected: Expected
    busbw: float = 0.0

    @property
    def excess(self) -> float:
        """How much longer than expected, in standard deviations; negative: faster."""
        return math.log(self.measured / self.expected.time) / self.expected.spread


@dataclass(frozen=True)
class Sweep:
    """One operation over its sizes; `row` says on which ranks and with which settings."""

    row: Row
    sizes: tuple[Size, ...]

    @property
    def op(self) -> str:
        return self.row.op


class Timed(Protocol):
    """Something else than a collective whose time was measured, such as a training step."""

    def sweep(self, fabric: Any, nccl: Nccl) -> Sweep: ...
    def time(self, fabric: Any, nccl: Nccl) -> float: ...


@dataclass(frozen=True)
class Situation:
    """What was measured on a cluster as it should be: rows of one operation, GPUs and hosts each, and steps.

    `lines` are those of logs.
    """

    fabric: Any
    nccl: Nccl
    series: tuple[tuple[Row, ...], ...] = field(repr=False)
    steps: tuple[Timed, ...] = field(default=(), repr=False)
    lines: tuple[str, ...] = field(default=(), repr=False)

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Every operation, and every step, beside what the cluster should take."""
        rows = (self._sweep(rows) for rows in self.series)
        steps = (step.sweep(self.fabric, self.nccl) for step in self.steps)
        return (*rows, *steps)

    def _sweep(self, rows: Sequence[Row]) -> Sweep:
        factor = bus_factor(rows[0].op, rows[0].ranks)
        sizes = [
            Size(s, time, expected_of(row, self.fabric, self.nccl), factor * s / time)
            for s, time, row in middles(rows)
        ]
        return Sweep(rows[0], tuple(sizes))

    def times(self, change: Change) -> list[float]:
        """Seconds of every size of every operation with a change.

        Raises
        ------
        PrestepError
            Where the cluster has nothing to change.
        """
        fabric = with_overrides(self.fabric, change.links, "cause")
        nccl = nccl_of(vars(self.nccl) | dict(change.nccl), "cause")
        rows = [row for rows in self.series for _, _, row in middles(rows)]
        if change.slows is not None:
            expected = [size.expected for size in self.sizes]
            factors = map(change.slows, rows, expected)
            slowed = [f * one.time for f, one in zip(factors, expected, strict=False)]
            return [*slowed, *(one.time for one in expected[len(rows) :])]
        steps = [step.time(fabric, nccl) for step in self.steps]
        own = change.by_row or (lambda row: {})
        each = [nccl_of(vars(nccl) | dict(own(row)), "log") for row in rows]
        timed = (
            _timed(row, fabric, how)[0] for row, how in zip(rows, each, strict=True)
        )
        return [*timed, *steps]

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Names of the hosts, where the same was measured on different ones."""
        ran = {rows[0].machine for rows in self.series}
        names = {host for machine in ran for host in machine.split(",") if host}
        return tuple(sorted(names)) if len(ran) > 1 else ()

    def only_with(self, host: str, times: Sequence[float]) -> tuple[float, ...]:
        """Times of what may have run on a host; of what ran without it, the expected ones."""
        return tuple(
            time
            if host in (sweep.row.machine or host).split(",")
            else size.expected.time
            for (sweep, size), time in zip(self.measured, times, strict=True)
        )

    @property
    def measured(self) -> list[tuple[Sweep, Size]]:
        """Every size, with the sweep that it belongs to."""
        return [(sweep, size) for sweep in self.sweeps for size in sweep.sizes]

    @property
    def sizes(self) -> list[Size]:
        return [size for sweep in self.sweeps for size in sweep.sizes]

    def ranks_of(self, row: Row) -> tuple[str, ...]:
        """The GPUs that a row ran on."""
        return tuple(members(row, gpus_of(row, self.fabric))[1])

    @property
    def hosts(self) -> int:
        """Hosts that take part."""
        return len(set(map(self.fabric.host_of, self.gpus)))

    @property
    def gpus(self) -> list[str]:
        """GPUs of the largest of the rows."""
        gpus: list[str] = list(self.fabric.gpus)
        if self.steps or not self.series:
            return gpus
        row = max((rows[0] for rows in self.series), key=lambda row: row.ranks)
        return list(gpus_of(row, self.fabric))[: row.ranks]


def middles(rows: Iterable[Row]) -> list[tuple[int, float, Row]]:
    """(bytes, median seconds, one of its rows) of every size, the smallest first."""
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row.size, []).append(row)
    return [
        (size, statistics.median(row.time for row in same), same[0])
        for size, same in sorted(by_size.items())
    ]


def series_of(rows: Iterable[Row]) -> tuple[tuple[Row, ...], ...]:
    """The rows by operation, ranks and hosts; in place and out of place are one series."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        op = row.op.removesuffix(IN_PLACE)
        key = op, row.ranks, row.hosts, row.per_host, row.machine
        series.setdefault(key, []).append(replace(row, op=op))
    return tuple(map(tuple, series.values()))


def expected_of(row: Row, fabric: Any, nccl: Nccl) -> Expected:
    """What a row should take on a fabric."""
    time, plan = _timed(row, fabric, nccl)
    share = latency_share(plan, fabric)
    place = place_of(plan, fabric)
    inside = place not in (NETWORK, SHAPED)
    name = HOST if inside else place
    if place == NETWORK and row.op in PAIRS:
        name = f"{NETWORK}, pairs"
    deviation = spread(INSIDE if inside else place, share)
    if row.label == RECORDED:
        deviation = math.hypot(deviation, BESIDE)
    few = name == NETWORK and (row.hosts or 1) <= FEW_HOSTS
    large = LARGE if few and row.size >= LARGE_BYTES else BANDWIDTH
    return Expected(
        time,
        deviation,
        name,
        LATENCY if share > 0.5 else large,
        plan.algo,
        plan.proto,
        plan.channels,
    )


def _timed(row: Row, fabric: Any, nccl: Nccl) -> tuple[float, Plan]:
    """Seconds of a row as its harness times them, and the plan."""
    op, ranks = members(row, gpus_of(row, fabric))
    plan = plan_collective(op, row.size, ranks, fabric, nccl)
    if row.label in TESTED:
        plan = machine.as_tested(plan, fabric)
    return called(row, op, plan, fabric), plan
