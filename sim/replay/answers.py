"""Answers of a replay beside its steps: its critical path, what its GPUs did, and overlap by axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from prestep.sim.analysis import metrics
from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.path_walk import critical_path
from prestep.sim.replay.outcome import Outcome, last_step
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.work import COMMUNICATION, GPU, MARK, Op

SHARES = ("compute", "exposed communication", "host", "idle")
# Pauses of a GPU that are shorter than this are its own, not the host's, s.
PAUSE = 10e-6


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


# -- what GPUs did in the last step -------------------------------------------------------------------
class GpuWork(NamedTuple):
    """Operations of one GPU: start, end and launch in seconds, and the axis of communication ("" of a kernel)."""

    start: np.ndarray
    end: np.ndarray
    launch: np.ndarray
    axis: np.ndarray

    @classmethod
    def of(
        cls, spans: Iterable[tuple[float, float, float]], axes: list[str]
    ) -> GpuWork:
        """Work from (start, end, launch) and the axis of each operation."""
        start, end, launch = np.array([*spans]).reshape(-1, 3).T
        return cls(start, end, launch, np.array(axes, dtype=object))

    def seconds(self, *layers: metrics.Intervals) -> list[float]:
        """Of the time from the first start to the last end: what each layer covers and none before it, and the rest."""
        return metrics.sweep(layers, self.start.min(), self.end.max()).tolist()  # type: ignore[no-any-return]

    def where(self, rows: np.ndarray) -> metrics.Intervals:
        return self.start[rows], self.end[rows]

    @property
    def kernels(self) -> metrics.Intervals:
        return self.where(self.axis == "")

    def shares(self) -> dict[str, float]:
        """Seconds by share: compute hides communication; pauses before what had not been launched are the host's."""
        gaps = metrics.host_gaps(self.start, self.end, self.launch, PAUSE)
        seconds = self.seconds(self.kernels, self.where(self.axis != ""), gaps)
        return dict(zip(SHARES, seconds, strict=True))

    def overlap(self, axis: str) -> dict[str, float]:
        """Seconds of communication along an axis: in all, beside kernels, and by itself."""
        moves = self.where(self.axis == axis)
        total, (_, exposed, _) = (
            self.seconds(moves)[0],
            self.seconds(self.kernels, moves),
        )
        return {"total": total, "hidden": total - exposed, "exposed": exposed}


def _last_nodes(outcome: Outcome, nodes: Sequence[Node]) -> dict[int, Node]:
    """A rank's GPU work of the last step that is reported, by its index."""
    last = last_step(outcome, nodes)
    return {
        i: node
        for i, node in enumerate(nodes)
        if node.kind == GPU and node.op.step == last
    }


def _simulated(outcome: Outcome) -> list[GpuWork]:
    """What every GPU that has any work did, as it was played."""
    run, works = outcome.run, []
    for index, program in enumerate(outcome.replay.programs):
        nodes = _last_nodes(outcome, program)
        columns = run.start[index][0], run.end[index][0], run.launch[index][0]
        spans = zip(*(column[list(nodes)] for column in columns), strict=True)
        axes = [_axis(n.op, [m.axis for m in n.comms]) for n in nodes.values()]
        if axes:
            works.append(GpuWork.of(spans, axes))
    return works


def _recorded(outcome: Outcome) -> list[GpuWork]:
    """The same as it was recorded; nothing of ranks without times."""
    job, name, works = outcome.replay.job, outcome.steps[-1].step, []
    played = {program.rank for program in outcome.replay.graph.programs}
    for work in job.works:
        if work.rank not in played or not work.timed:
            continue
        last = [step for step, _, _ in work.steps].index(name)
        ops = [op for op in work.ops if op.kind == GPU and op.step == last]
        axes = [
            _axis(op, [job.meetings[index].axis for index in op.comms]) for op in ops
        ]
        if ops:
            works.append(
                GpuWork.of(((op.start, op.finish, op.issue) for op in ops), axes)
            )
    return works


def _axis(op: Op, axes: Sequence[str]) -> str:
    """The axis of communication, "all" where it is not known; "" of a kernel."""
    if axes:
        return axes[0] or "all"
    return "all" if op.family == COMMUNICATION else ""


def breakdown(outcome: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the last step by what the GPU did, mean over ranks: (measured, simulated).

    Nothing is measured of traces without times.
    """
    measured, simulated = (
        _mean([work.shares() for work in works])
        for works in (_recorded(outcome), _simulated(outcome))
    )
    return measured, simulated


def overlap(outcome: Outcome) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of communication of the last step by axis: in all, hidden by kernels and exposed; mean over ranks.

    Measured and simulated. Where two axes are exposed at the same moment, both count it.
    """
    sides = {"measured": _recorded(outcome), "simulated": _simulated(outcome)}
    return {side: _by_axis(works) for side, works in sides.items()}


def _by_axis(works: Sequence[GpuWork]) -> dict[str, dict[str, float]]:
    """Seconds of communication by axis, mean over the ranks that have any of it."""
    axes = dict.fromkeys(axis for work in works for axis in sorted({*work.axis} - {""}))
    return {
        axis: _mean([work.overlap(axis) for work in works if axis in work.axis])
        for axis in axes
    }


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of rows with the same names; nothing of none."""
    return {name: mean(row[name] for row in rows) for name in (rows[0] if rows else ())}


def families(outcome: Outcome) -> dict[str, float]:
    """Seconds of GPU work by kernel family in the last step, mean over ranks."""
    total: dict[str, float] = {}
    programs = outcome.replay.programs
    for index, nodes in enumerate(programs):
        start, end = outcome.run.start[index][0], outcome.run.end[index][0]
        for i, node in _last_nodes(outcome, nodes).items():
            seconds = float(end[i] - start[i])
            total[node.family] = total.get(node.family, 0.0) + seconds
    ordered = sorted(total.items(), key=lambda item: -item[1])
    return {family: seconds / len(programs) for family, seconds in ordered}
