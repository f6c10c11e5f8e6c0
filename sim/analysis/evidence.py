"""What the time of a step rests on: shares by evidence grade, and what had to do without a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sim.analysis import metrics
from sim.analysis.prediction import Fallback
from sim.collectives.plan import Plan
from sim.costs import Gpu
from sim.costs.interference import is_known
from sim.engine.execution import Run
from sim.graph.kernel import Kernel
from sim.graph.opgraph import COMM, KERNEL, Chain, Program
from sim.planning import host_speed
from sim.planning.numa import LOCAL
from sim.planning.planned import Planned

GROUNDED = ("measured", "fitted")
# Of an operation its program and place there, whether it computes, its kernel or first communication, and seconds.
_Executed = tuple[int, int, bool, int, float]
# Why something has no measurement or fit of its own: (what, grade).
Reason = tuple[str, str]


def evidence_of(planned: Planned, run: Run) -> dict[str, float]:
    """Evidence grades weighted by the time of kernels and communications in the last step."""
    kernels = [_kernel_grades(planned, k) for k in planned.graph.kernels]
    grades, times = [], []
    plans = [{plan.evidence: 1.0} for plan in planned.plans]
    for _, _, computes, number, time in _last_step(planned, run):
        shares = kernels[number] if computes else plans[number]
        for grade, share in shares.items():
            grades.append(grade)
            times.append(time * share)
    return metrics.evidence_shares(grades, np.array(times))


def tables_of(planned: Planned, run: Run) -> dict[str, float]:
    """Shares of the kernels' time in the last step by whose tables say it (`Gpu.table_of`)."""
    whose = [_kernel_tables(planned, kernel) for kernel in planned.graph.kernels]
    times: dict[str, float] = {}
    for _, _, computes, number, time in _last_step(planned, run):
        if not computes:
            continue
        for name, share in whose[number].items():
            times[name] = times.get(name, 0.0) + time * share
    whole = sum(times.values()) or 1.0
    shares = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    return {name: time / whole for name, time in shares}


def _kernel_tables(planned: Planned, kernel: Kernel | Chain) -> dict[str, float]:
    """Shares of a kernel's time by whose tables say it; of a chain those of its kernels."""
    if isinstance(kernel, Chain):
        shares: dict[str, float] = {}
        for inner, part in planned.chains[kernel.graph].constituents():
            for name, share in _kernel_tables(planned, inner).items():
                shares[name] = shares.get(name, 0.0) + part * share
        return shares
    return {} if kernel.kind == "spin" else {planned.gpu.table_of(kernel): 1.0}


def _kernel_grades(planned: Planned, kernel: Kernel | Chain) -> dict[str, float]:
    """Shares of its time by grade; of a chain those of its kernels and of what it communicates."""
    if isinstance(kernel, Chain):
        return _chain_grades(planned, kernel)
    if kernel.kind == "spin":
        return {"measured": 1.0}
    return {planned.gpu.evidence(kernel): 1.0}


def _chain_grades(planned: Planned, kernel: Chain) -> dict[str, float]:
    chain, shares = planned.chains[kernel.graph], dict[str, float]()
    for inner, share in chain.constituents():
        for grade, part in _kernel_grades(planned, inner).items():
            shares[grade] = shares.get(grade, 0.0) + share * part
    for plan in chain.plans:
        rest = max(0.0, 1.0 - sum(shares.values()))
        grade = plan.evidence
        shares[grade] = shares.get(grade, 0.0) + rest / len(chain.plans)
    whole = sum(shares.values()) or 1.0
    return {grade: share / whole for grade, share in shares.items()}


def fallbacks_of(
    planned: Planned, run: Run, host_share: float = 0.0
) -> tuple[Fallback, ...]:
    """What the last step had to do without a measurement or a fit that covers it, most time first.

    Kernels whose kind or shape no table of this GPU covers, kernels beside communication whose slowdown was not
    measured, communications on hardware that was not measured or whose choice is not known, and the speed of a host
    that nothing is said of. `host_share` is the share of the step in which GPUs wait for the host (0 to 1).
    """
    reasons = _reasons_in(planned, run)
    whole, times = 0.0, dict[Reason, list[float]]()
    for program, place, computes, number, time in _last_step(planned, run):
        whole += time
        for reason, share in reasons(program, place, computes, number).items():
            times.setdefault(reason, []).append(time * share)
    fallbacks = [
        Fallback(*reason, len(parts), sum(parts) / (whole or 1.0))
        for reason, parts in times.items()
    ]
    fallbacks += _host(planned, host_share)
    return tuple(
        sorted(fallbacks, key=lambda fallback: (-fallback.share, fallback.what))
    )


def _reasons_in(
    planned: Planned, run: Run
) -> Callable[[int, int, bool, int], Mapping[Reason, float]]:
    """The reasons of an operation of a run, each with the share of its time that it holds for: see `_Executed`."""
    graph = planned.graph
    kernels = [_shares(planned, kernel) for kernel in graph.kernels]
    comms = [dict.fromkeys(_plan_reasons(plan), 1.0) for plan in planned.plans]
    crowds = [_beside(p, run, i).tolist() for i, p in enumerate(graph.programs)]

    def reasons(
        program: int, place: int, computes: bool, number: int
    ) -> Mapping[Reason, float]:
        if not computes:
            return comms[number]
        kernel, beside = graph.kernels[number], crowds[program][place]
        if not beside or isinstance(kernel, Chain) or is_known(kernel):
            return kernels[number]
        crowded = (f"kernel {kernel.kind} beside communication", "guess")
        return {**kernels[number], crowded: 1.0}

    return reasons


def _kernel_reasons(gpu: Gpu, kernel: Kernel) -> Iterator[Reason]:
    if kernel.kind != "spin" and (instead := gpu.stands_on(kernel)):
        yield f"kernel {kernel.kind}: {instead}", gpu.evidence(kernel)


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
    if planned.scenario.cluster.numa != LOCAL:
        return [Fallback("cluster.numa: the host's time for it", "guess", 1, share)]
    if host_speed.stated(planned.scenario, planned.fabric) is not None:
        return []
    what = f"host_factor of {planned.fabric.name}: taken as 1"
    return [Fallback(what, "guess", 1, share)]


def _last_step(planned: Planned, run: Run) -> Iterator[_Executed]:
    """Every kernel and communication of the last step."""
    for i, p in enumerate(planned.graph.programs):
        times = (run.end[i][-1] - run.start[i][-1]).tolist()
        payloads, computes = p.payload.tolist(), (p.kind == KERNEL).tolist()
        for at in np.flatnonzero((p.kind == KERNEL) | (p.kind == COMM)).tolist():
            is_kernel, number = computes[at], payloads[at]
            if not is_kernel:
                number = p.parts[number][0]
            yield i, at, is_kernel, number, times[at]


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
