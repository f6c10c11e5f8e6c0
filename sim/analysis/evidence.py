"""What the time of a step rests on: shares by evidence grade, and what had to do without a measurement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from prestep.sim.analysis.prediction import Fallback
from prestep.sim.collectives.plan import Plan
from prestep.sim.costs import Gpu
from prestep.sim.costs.estimators import OWN
from prestep.sim.costs.interference import is_known
from prestep.sim.engine.execution import Run
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, Chain, Program
from prestep.sim.planning.planned import Planned
from prestep.sim.units import percent

GROUNDED = ("measured", "fitted")
#: Smaller shares of tables are not shown.
LEAST_SHOWN = 0.005
# Why something has no measurement or fit of its own: (what, grade).
Reason = tuple[str, str]


def tables_of(planned: Planned, run: Run) -> dict[str, float]:
    """Shares of the kernels' time in the last step by whose tables say it (`Basis.source`)."""
    times: dict[str, float] = {}
    for number, _, time in _Spent.of(planned, run).kernels():
        shown = _kernel_tables(planned, planned.graph.kernels[number])
        for name, share in shown.items():
            times[name] = times.get(name, 0.0) + time * share
    whole = sum(times.values()) or 1.0
    shares = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    return {name: time / whole for name, time in shares}


def of_others(tables: Mapping[str, float]) -> str:
    """As "library trtllm/1.3.0rc20 41 %, borrowed from h200 12 %, own 47 %"; "" where nearly all are the GPU's own."""
    shown = {name: share for name, share in tables.items() if share >= LEAST_SHOWN}
    if {*shown} <= {OWN}:
        return ""
    return ", ".join(f"{name} {percent(share)}" for name, share in shown.items())


def _kernel_tables(planned: Planned, kernel: Kernel | Chain) -> dict[str, float]:
    """Shares of a kernel's time by whose tables say it; of a chain those of its kernels."""
    if isinstance(kernel, Chain):
        shares: dict[str, float] = {}
        for inner, part in planned.chains[kernel.graph].constituents():
            for name, share in _kernel_tables(planned, inner).items():
                shares[name] = shares.get(name, 0.0) + part * share
        return shares
    return {} if kernel.kind == "spin" else {planned.gpu.basis(kernel).source: 1.0}


def fallbacks_of(
    planned: Planned, run: Run, host_share: float = 0.0
) -> tuple[Fallback, ...]:
    """What the last step had to do without a measurement or a fit that covers it, most time first.

    Kernels whose kind or shape no table of this GPU covers, kernels beside communication whose slowdown was not
    measured, communications on hardware that was not measured or whose choice is not known, and the speed of a host
    that nothing is said of. `host_share` is the share of the step in which GPUs wait for the host (0 to 1).
    """
    spent = _Spent.of(planned, run)
    counts, times = Counter[Reason](), defaultdict[Reason, float](float)
    for reason, count, time in _unmeasured(planned, spent):
        counts[reason] += count
        times[reason] += time
    whole = spent.whole or 1.0
    fallbacks = [
        Fallback(*reason, counts[reason], time / whole)
        for reason, time in times.items()
    ]
    fallbacks += _host(planned, host_share)
    return tuple(
        sorted(fallbacks, key=lambda fallback: (-fallback.share, fallback.what))
    )


def _unmeasured(planned: Planned, spent: _Spent) -> Iterator[tuple[Reason, int, float]]:
    """What kernels and communications lack, how often, and for how many seconds."""
    for number, count, time in spent.kernels():
        kernel = planned.graph.kernels[number]
        for reason, share in _shares(planned, kernel).items():
            yield reason, count, time * share
        if not isinstance(kernel, Chain) and not is_known(kernel):
            count, time = spent.crowded(number)
            if count:
                yield (
                    (f"kernel {kernel.kind} beside communication", "guess"),
                    count,
                    time,
                )
    for plan, count, time in spent.plans():
        for reason in dict.fromkeys(_plan_reasons(plan)):
            yield reason, count, time


def _kernel_reasons(gpu: Gpu, kernel: Kernel) -> Iterator[Reason]:
    if kernel.kind != "spin" and (basis := gpu.basis(kernel)).reason:
        yield f"kernel {kernel.kind}: {basis.reason}", basis.grade


def _shares(planned: Planned, kernel: Kernel | Chain) -> dict[Reason, float]:
    """Reasons, each with the share of the kernel's time that it holds for; of a chain those of what it is made of."""
    if not isinstance(kernel, Chain):
        return dict.fromkeys(_kernel_reasons(planned.gpu, kernel), 1.0)
    chain, shares = planned.chains[kernel.graph], dict[Reason, float]()
    moving = 1.0  # what is no kernel's time is communication, in equal parts
    for inner, part in chain.constituents():
        moving -= part
        for reason, share in _shares(planned, inner).items():
            shares[reason] = shares.get(reason, 0.0) + share * part
    each = max(0.0, moving) / len(chain.plans) if chain.plans else 0.0
    for plan in chain.plans:
        for reason in _plan_reasons(plan):
            shares[reason] = shares.get(reason, 0.0) + each
    return shares


def _plan_reasons(plan: Plan) -> Iterator[Reason]:
    name = f"{plan.op} {plan.algo} {plan.proto}"
    if plan.evidence not in GROUNDED:
        yield name, plan.evidence
    for note in plan.notes:
        yield f"{name}: {note}", "guess"


def _host(planned: Planned, share: float) -> list[Fallback]:
    """The speed of the host, where neither the scenario nor the cluster says it and GPUs wait for it."""
    if share <= 0:
        return []
    if not planned.machine.host.is_local:
        return [Fallback("cluster.numa: the host's time for it", "guess", 1, share)]
    if planned.machine.host.stated is not None:
        return []
    what = f"host_factor of {planned.fabric.name}: taken as 1"
    return [Fallback(what, "guess", 1, share)]


@dataclass(frozen=True, eq=False)
class _Spent:
    """Kernels and communications of the last step of all ranks: how many of each, and their seconds.

    Attributes
    ----------
    computes, beside : np.ndarray of bool
        By operation: whether it is a kernel, and whether it overlaps a communication that holds SMs.
    number : np.ndarray of int
        By operation, its kernel, or the first communication that it takes part in.
    time : np.ndarray
        By operation, s.
    """

    planned: Planned
    computes: np.ndarray
    number: np.ndarray
    time: np.ndarray
    beside: np.ndarray

    @classmethod
    def of(cls, planned: Planned, run: Run) -> _Spent:
        columns = [_last_step(p, run, i) for i, p in enumerate(planned.graph.programs)]
        return cls(planned, *map(np.concatenate, zip(*columns, strict=True)))

    @property
    def whole(self) -> float:
        return float(self.time.sum())

    def kernels(self) -> Iterator[tuple[int, int, float]]:
        """Every kernel that was executed, by its number."""
        return _sums(self.number[self.computes], self.time[self.computes])

    def crowded(self, number: int) -> tuple[int, float]:
        """How often and how long a kernel ran beside communication."""
        mine = self.computes & self.beside & (self.number == number)
        return int(mine.sum()), float(self.time[mine].sum())

    def plans(self) -> Iterator[tuple[Plan, int, float]]:
        """Every communication that was executed, those of one plan as one."""
        known: dict[int, int] = {}
        places = [known.setdefault(id(plan), len(known)) for plan in self.planned.plans]
        first = list({id(plan): plan for plan in self.planned.plans}.values())
        moves = ~self.computes
        which = np.array(places, dtype=np.int64)[self.number[moves]]
        for place, count, time in _sums(which, self.time[moves]):
            yield first[place], count, time


def _sums(numbers: np.ndarray, times: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """Numbers, how often each one is there, and the sum of its times."""
    counts = np.bincount(numbers)
    sums = np.bincount(numbers, weights=times)
    for number in np.flatnonzero(counts).tolist():
        yield number, int(counts[number]), float(sums[number])


def _last_step(p: Program, run: Run, i: int) -> tuple[np.ndarray, ...]:
    """Of every kernel and communication of a rank's last step: see `_Spent`."""
    ops = np.flatnonzero((p.kind == KERNEL) | (p.kind == COMM))
    computes, number = p.kind[ops] == KERNEL, p.payload[ops].copy()
    first = np.array([part[0] for part in p.parts], dtype=number.dtype)
    number[~computes] = first[number[~computes]]
    time = (run.end[i][-1] - run.start[i][-1])[ops]
    return computes, number, time, _beside(p, run, i)[ops]


def _beside(p: Program, run: Run, i: int) -> np.ndarray:
    """Which operations of a rank's last step overlap a communication that holds SMs there."""
    start, end = run.start[i][-1], run.end[i][-1]
    payloads = p.payload.tolist()
    holding = [
        op
        for op in np.flatnonzero(p.kind == COMM).tolist()
        if _holds_sms(p, run, payloads[op])
    ]
    if not holding:
        return np.zeros(len(p.kind), bool)
    # Communications of one GPU run one after the other: in order of start they are in order of end too.
    starts, ends = np.sort(start[holding]), np.sort(end[holding])
    begun = np.searchsorted(starts, end, "left")
    over = np.searchsorted(ends, start, "right")
    beside: np.ndarray = begun > over
    return beside


def _holds_sms(p: Program, run: Run, batch: int) -> bool:
    return any(run.plans[part].channels for part in p.parts[batch])
