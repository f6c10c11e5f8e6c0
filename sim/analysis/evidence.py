"""What the time of a step rests on: shares by evidence grade, and what had to do without a measurement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.analysis import metrics
from sim.analysis.prediction import Fallback
from sim.collectives.plan import Plan
from sim.costs import Gpu
from sim.costs.interference import is_known
from sim.engine.execution import Run
from sim.graph.kernel import Kernel
from sim.graph.opgraph import COMM, KERNEL, Chain, Program
from sim.planning.planned import Planned

GROUNDED = ("measured", "fitted")
# Why something has no measurement or fit of its own: (what, grade).
Reason = tuple[str, str]


def evidence_of(planned: Planned, run: Run) -> dict[str, float]:
    """Evidence grades weighted by the time of kernels and communications in the last step."""
    kernels = [_kernel_grades(planned, k) for k in planned.graph.kernels]
    comms = [((plan.evidence, 1.0),) for plan in planned.plans]
    grades, times = [], []
    for p, index, start, end in _last_step(planned, run):
        of = (
            kernels[p.payload[index]]
            if p.kind[index] == KERNEL
            else comms[p.parts[p.payload[index]][0]]
        )
        for grade, share in of:
            grades.append(grade)
            times.append((end - start) * share)
    return metrics.evidence_shares(grades, np.array(times))


def _kernel_grades(
    planned: Planned, kernel: Kernel | Chain
) -> tuple[tuple[str, float], ...]:
    """(grade, share of its time); of a chain those of its kernels and of what it communicates."""
    if not isinstance(kernel, Chain):
        return (
            (
                "measured" if kernel.kind == "spin" else planned.gpu.evidence(kernel),
                1.0,
            ),
        )
    chain, shares = planned.chains[kernel.graph], dict[str, float]()
    for inner, share in chain.constituents():
        for grade, part in _kernel_grades(planned, inner):
            shares[grade] = shares.get(grade, 0.0) + share * part
    plans = [plan.evidence for plan in chain.plans]
    for grade in plans:
        shares[grade] = shares.get(grade, 0.0) + max(
            0.0, 1.0 - sum(shares.values())
        ) / len(plans)
    whole = sum(shares.values()) or 1.0
    return tuple((grade, share / whole) for grade, share in shares.items())


def fallbacks_of(
    planned: Planned, run: Run, host_share: float = 0.0
) -> tuple[Fallback, ...]:
    """What the last step had to do without a measurement or a fit that covers it, most time first.

    Kernels whose kind or shape no table of this GPU covers, kernels beside communication whose slowdown was not
    measured, communications on hardware that was not measured or whose choice is not known, and the speed of a host
    that nothing is said of. `host_share` is the share of the step in which GPUs wait for the host (0 to 1).
    """
    graph = planned.graph
    kernels = [_shares(planned, k) for k in graph.kernels]
    comms = [dict.fromkeys(_plan_reasons(plan), 1.0) for plan in planned.plans]
    beside = {p.rank: _beside(p, run, i) for i, p in enumerate(graph.programs)}
    whole, found = 0.0, dict[Reason, list[float]]()
    for p, index, start, end in _last_step(planned, run):
        payload, time = int(p.payload[index]), end - start
        if p.kind[index] == KERNEL:
            kernel = graph.kernels[payload]
            reasons = kernels[payload]
            if (
                beside[p.rank][index]
                and not isinstance(kernel, Chain)
                and not is_known(kernel)
            ):
                reasons = {
                    **reasons,
                    (f"kernel {kernel.kind} beside communication", "guess"): 1.0,
                }
        else:
            reasons = comms[p.parts[payload][0]]
        whole += time
        for reason, share in reasons.items():
            found.setdefault(reason, []).append(time * share)
    listed = [
        Fallback(*reason, len(times), sum(times) / (whole or 1.0))
        for reason, times in found.items()
    ]
    listed += _host(planned, host_share)
    return tuple(sorted(listed, key=lambda fallback: (-fallback.share, fallback.what)))


def _kernel_reasons(gpu: Gpu, kernel: Kernel) -> Iterator[Reason]:
    if kernel.kind != "spin" and (instead := gpu.stands_on(kernel)):
        yield f"kernel {kernel.kind}: {instead}", gpu.evidence(kernel)


def _shares(planned: Planned, kernel: Kernel | Chain) -> dict[Reason, float]:
    """Reasons, each with the share of the kernel's time that it holds for; of a chain those of what it is made of."""
    if not isinstance(kernel, Chain):
        return dict.fromkeys(_kernel_reasons(planned.gpu, kernel), 1.0)
    chain, shares = planned.chains[kernel.graph], dict[Reason, float]()
    moving = 1.0
    for inner, part in chain.constituents():
        moving -= part
        for reason, share in _shares(planned, inner).items():
            shares[reason] = shares.get(reason, 0.0) + share * part
    plans = chain.plans
    for plan in plans:  # what is no kernel's time is communication, in equal parts
        for reason in _plan_reasons(plan):
            shares[reason] = shares.get(reason, 0.0) + max(0.0, moving) / len(plans)
    return shares


def _plan_reasons(plan: Plan) -> Iterator[Reason]:
    name = f"{plan.op} {plan.algo} {plan.proto}"
    if plan.evidence not in GROUNDED:
        yield name, plan.evidence
    for note in plan.notes:
        yield f"{name}: {note}", "guess"


def _host(planned: Planned, share: float) -> list[Fallback]:
    facts = planned.fabric.cluster_facts
    stated = (
        planned.scenario.cluster.host_factor is not None
        or facts.host_factor is not None
    )
    if stated or share <= 0:
        return []
    return [
        Fallback(f"host_factor of {planned.fabric.name}: taken as 1", "guess", 1, share)
    ]


def _last_step(
    planned: Planned, run: Run
) -> Iterator[tuple[Program, int, float, float]]:
    """(program, operation, start, end) of every kernel and communication of the last step."""
    for i, p in enumerate(planned.graph.programs):
        start, end = run.start[i][-1].tolist(), run.end[i][-1].tolist()
        for index in np.flatnonzero((p.kind == KERNEL) | (p.kind == COMM)).tolist():
            yield p, index, start[index], end[index]


def _beside(p: Program, run: Run, i: int) -> np.ndarray:
    """Which operations of a rank's last step overlap a communication that holds SMs there."""
    start, end = run.start[i][-1], run.end[i][-1]
    holding = [
        c
        for c in np.flatnonzero(p.kind == COMM)
        if any(run.plans[k].channels for k in p.parts[p.payload[c]])
    ]
    beside = np.zeros(len(p.kind), bool)
    if holding:
        # Communications of one GPU run one after the other: in order of start they are in order of end too.
        first, last = np.sort(start[holding]), np.sort(end[holding])
        beside = np.searchsorted(first, end, "left") > np.searchsorted(
            last, start, "right"
        )
    return beside
