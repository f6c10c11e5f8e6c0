"""Answers of a replay beside its steps: its critical path, and overlap by axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.path_walk import critical_path
from prestep.sim.replay.outcome import Outcome, last_step
from prestep.workloads.traces.work import COMMUNICATION, GPU, MARK, Op


def path(outcome: Outcome) -> CriticalPath:
    """The critical path of the last step, through all ranks that were played."""
    replay = outcome.replay
    window = _gpu_window(outcome) if outcome.clock == "gpu" else _host_window(outcome)

    def family(program: int, op: int) -> str:
        return replay.programs[program][op].family

    return critical_path(replay.graph, outcome.run, *window, family=family)


def _host_window(outcome: Outcome) -> tuple[float, float]:
    """From the first rank's begin of the last step to the last rank's end of it (seconds of the run)."""
    name = outcome.steps[-1].step
    begins, ends = [], []
    for index, nodes in enumerate(outcome.replay.programs):
        end = outcome.run.end[index][0]
        marks = {node.op.name: i for i, node in enumerate(nodes) if node.kind == MARK}
        begins.append(float(end[marks[f"begin {name}"]]))
        ends.append(float(end[marks[f"end {name}"]]))
    return min(begins), max(ends)


def _gpu_window(outcome: Outcome) -> tuple[float, float]:
    """From the last end of GPU work before the last step to that of the step itself.

    Where no work comes before, from the first rank's begin of the step.
    """
    before, within = [], [0.0]
    for index, nodes in enumerate(outcome.replay.programs):
        end, last = outcome.run.end[index][0], last_step(outcome, nodes)
        for i, node in enumerate(nodes):
            if node.kind != GPU or node.op.step > last:
                continue
            within.append(float(end[i]))
            if node.op.step < last:
                before.append(float(end[i]))
    begin = max(before) if before else _host_window(outcome)[0]
    return begin, max(within)


def recorded_ops(outcome: Outcome, rank: int) -> list[Op]:
    """What a rank recorded on its GPU in the last step that is reported; nothing of a rank without times."""
    name = outcome.steps[-1].step
    for work in outcome.replay.job.works:
        if work.rank == rank and work.timed:
            last = [step for step, _, _ in work.steps].index(name)
            return [op for op in work.ops if op.kind == GPU and op.step == last]
    return []


def overlap(outcome: Outcome) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of communication of the last step by axis: in all, hidden by kernels and exposed; mean over ranks.

    Measured and simulated. Where two axes are exposed at the same moment, both count it.
    """
    programs = outcome.replay.graph.programs
    measured = [_recorded_spans(outcome, program.rank) for program in programs]
    simulated = [_simulated_spans(outcome, index) for index in range(len(programs))]
    return {"measured": _by_axis(measured), "simulated": _by_axis(simulated)}


Spans = list[tuple[float, float]]


def _simulated_spans(outcome: Outcome, index: int) -> dict[str, Spans]:
    """When a rank's GPU was at work in the last step: kernels (""), and communication by axis."""
    nodes, run = outcome.replay.programs[index], outcome.run
    start, end = run.start[index][0], run.end[index][0]
    last = last_step(outcome, nodes)
    spans: dict[str, Spans] = {}
    for i, node in enumerate(nodes):
        if node.kind == GPU and node.op.step == last:
            axes = [meeting.axis for meeting in node.comms]
            spans.setdefault(_axis(node.op, axes), []).append(
                (float(start[i]), float(end[i]))
            )
    return spans


def _recorded_spans(outcome: Outcome, rank: int) -> dict[str, Spans]:
    """The same as it was recorded; nothing of a rank that was not."""
    meetings = outcome.replay.job.meetings
    spans: dict[str, Spans] = {}
    for op in recorded_ops(outcome, rank):
        axes = [meetings[index].axis for index in op.comms]
        spans.setdefault(_axis(op, axes), []).append((op.start, op.finish))
    return spans


class _Hiding(NamedTuple):
    """Seconds of communication: in all, beside kernels, and by itself."""

    total: float
    hidden: float
    exposed: float


def _axis(op: Op, axes: Sequence[str]) -> str:
    """The axis of communication, "all" where it is not known; "" of a kernel."""
    if axes:
        return axes[0] or "all"
    return "all" if op.family == COMMUNICATION else ""


def _by_axis(ranks: Sequence[Mapping[str, Spans]]) -> dict[str, dict[str, float]]:
    """Seconds of communication by axis, mean over the ranks that have any of it."""
    rows: dict[str, list[_Hiding]] = {}
    for spans in ranks:
        kernels = _merged(spans.get("", []))
        for axis in sorted(set(spans) - {""}):
            rows.setdefault(axis, []).append(_hiding(_merged(spans[axis]), kernels))
    return {axis: _mean(listed) for axis, listed in rows.items()}


def _mean(rows: Sequence[_Hiding]) -> dict[str, float]:
    return {name: mean(getattr(row, name) for row in rows) for name in _Hiding._fields}


def _hiding(communication: Spans, kernels: Spans) -> _Hiding:
    total = sum(end - start for start, end in communication)
    hidden = _shared(communication, kernels)
    return _Hiding(total, hidden, total - hidden)


def _merged(spans: Spans) -> Spans:
    """The same moments as disjoint spans in order."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _shared(one: Spans, other: Spans) -> float:
    """Seconds in both of two lists of disjoint spans in order."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
