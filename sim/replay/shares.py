"""What the GPUs of a replay did in its last step: shares of the time, and kernel families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np

from prestep.sim.replay.answers import recorded_ops
from prestep.sim.replay.outcome import Outcome, last_step
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.work import COMMUNICATION, GPU, Op

SHARES = ("compute", "exposed communication", "host", "idle")
# Pauses of a GPU that are shorter than this are its own, not the host's, s.
PAUSE = 10e-6


def breakdown(outcome: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the last step by what the GPU did, mean over ranks: (measured, simulated).

    Compute hides communication beside it; what is left of communication is exposed. Pauses in which the next operation
    had not been launched are the host's, others idle. Nothing is measured of traces without times.
    """
    programs = outcome.replay.graph.programs
    measured, simulated = [], []
    for index, nodes in enumerate(outcome.replay.programs):
        ops = _last_ops(outcome, nodes)
        if not ops:
            continue
        simulated.append(
            shares_of(_simulated_spans(outcome, index, list(ops)), ops.values())
        )
        if recorded := recorded_ops(outcome, programs[index].rank):
            spans = [(op.start, op.finish, op.issue) for op in recorded]
            measured.append(shares_of(spans, recorded))
    return _average(measured), _average(simulated)


Span = tuple[float, float, float]  # start, end and launch, s


def _last_ops(outcome: Outcome, nodes: Sequence[Node]) -> dict[int, Op]:
    """A rank's GPU work of the last step, by the index of its node."""
    last = last_step(outcome, nodes)
    return {
        i: node.op
        for i, node in enumerate(nodes)
        if node.kind == GPU and node.op.step == last
    }


def _simulated_spans(outcome: Outcome, index: int, rows: list[int]) -> list[Span]:
    run = outcome.run
    columns = run.start[index][0], run.end[index][0], run.launch[index][0]
    return list(zip(*(column[rows] for column in columns), strict=True))


def _average(ranks: list[dict[str, float]]) -> dict[str, float]:
    return {name: mean([shares[name] for shares in ranks]) for name in SHARES if ranks}


def shares_of(spans: Sequence[Span], ops: Iterable[Op]) -> dict[str, float]:
    """Seconds by share of a rank's spans, each of one operation."""
    communicates = np.array([op.family == COMMUNICATION for op in ops])
    times = np.array([(start, end) for start, end, _ in spans])
    whole, compute = _union(times), _union(times[~communicates])
    gaps = _gaps(times)
    host = _waiting_for_host(gaps, np.sort([launch for _, _, launch in spans]))
    paused = float(sum(end - start for start, end in gaps))
    return {
        "compute": compute,
        # Where two sums are equal, rounding may leave less than nothing of their difference.
        "exposed communication": max(0.0, whole - compute),
        "host": host,
        "idle": max(0.0, paused - host),
    }


def _waiting_for_host(
    gaps: Sequence[tuple[float, float]], launches: np.ndarray
) -> float:
    """Seconds of the pauses that end with an operation that was launched meanwhile; `launches` are sorted."""
    host = 0.0
    for start, end in gaps:
        following = np.searchsorted(launches, start)
        launched = following < len(launches) and launches[following] < end
        if end - start > PAUSE and launched:
            host += end - start
    return host


def _union(times: np.ndarray) -> float:
    if not len(times):
        return 0.0
    pauses = sum(end - start for start, end in _gaps(times))
    return float(times[:, 1].max() - times[:, 0].min() - pauses)


def _gaps(times: np.ndarray) -> list[tuple[float, float]]:
    """Pauses in which none of the spans runs."""
    if not len(times):
        return []
    ordered = times[np.argsort(times[:, 0])]
    reach = np.maximum.accumulate(ordered[:, 1])
    pauses = np.flatnonzero(ordered[1:, 0] > reach[:-1])
    return [(float(reach[i]), float(ordered[i + 1, 0])) for i in pauses]


def families(outcome: Outcome) -> dict[str, float]:
    """Seconds of GPU work by kernel family in the last step, mean over ranks."""
    total: dict[str, float] = {}
    programs = outcome.replay.programs
    for index, nodes in enumerate(programs):
        start, end = outcome.run.start[index][0], outcome.run.end[index][0]
        for i in _last_ops(outcome, nodes):
            family = nodes[i].family
            total[family] = total.get(family, 0.0) + float(end[i] - start[i])
    ordered = sorted(total.items(), key=lambda item: -item[1])
    return {family: seconds / len(programs) for family, seconds in ordered}
