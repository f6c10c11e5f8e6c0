"""Steps of a replay, measured and simulated, on the host's clock and on the GPU's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan

import numpy as np

from prestep.sim.engine.engine import Run
from prestep.sim.replay.outcome import StepTime
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.replay import Replay
from prestep.workloads.traces.work import GPU, MARK, Op, Work

# A GPU this far behind its host at the ends of steps is what the step waits for; share of the step.
BEHIND = 0.1


def step_times(replay: Replay, run: Run) -> list[StepTime]:
    return [
        step
        for index in range(len(replay.programs))
        for step in _steps_of_rank(replay, run, index)
    ]


def _steps_of_rank(replay: Replay, run: Run, index: int) -> Iterator[StepTime]:
    """Steps of a simulated rank; what is measured is nan of a rank without times."""
    job, nodes = replay.job, replay.programs[index]
    rank = replay.graph.programs[index].rank
    work = next((work for work in job.works if work.rank == rank), None)
    measured = _measured_steps(work)
    marks = _marks(nodes, run.start[index][0])
    ends = _simulated_ends(nodes, run.end[index][0])
    for k, (name, _, _) in enumerate((work or job.works[0]).steps):
        if name in job.steps:
            begin, end = marks[f"begin {name}"], marks[f"end {name}"]
            host, gpu = _step_on_clocks(ends, k, begin, end)
            recorded_host, recorded_gpu = measured.get(name, (nan, nan))
            yield StepTime(rank, name, recorded_host, host, recorded_gpu, gpu)


def _simulated_ends(nodes: Sequence[Node], end: np.ndarray) -> dict[int, float]:
    """Ends of GPU work by step, as `_gpu_ends` has them."""
    return _gpu_ends([node.op for node in nodes], end.tolist())


def _measured_steps(work: Work | None) -> dict[str, tuple[float, float]]:
    """Seconds of a recorded rank's steps by name, on both clocks; nothing of one without times."""
    if work is None or not work.timed:
        return {}
    ends = _gpu_ends(work.ops, [op.finish for op in work.ops])
    return {
        name: _step_on_clocks(ends, k, begin, end)
        for k, (name, begin, end) in enumerate(work.steps)
    }


def _marks(nodes: Sequence[Node], start: np.ndarray) -> dict[str, float]:
    """When a simulated rank came to each of its marks ("begin ProfilerStep#2"), in seconds."""
    return {n.op.name: float(start[i]) for i, n in enumerate(nodes) if n.kind == MARK}


def _step_on_clocks(
    ends: Mapping[int, float], step: int, begin: float, end: float
) -> tuple[float, float]:
    """Seconds of a step on (its host's clock, its GPU's), from ends of GPU work as `_gpu_ends` has them.

    The GPU's clock counts from the end of the work before the step, the first step's from its begin; a step whose
    work had ended by then takes none of it.
    """
    before = max(ends[step - 1], begin if step == 0 else 0.0)
    return end - begin, max(0.0, ends[step] - before)


def _gpu_ends(ops: Sequence[Op], ends: Sequence[float]) -> dict[int, float]:
    """Step -> end of the last GPU work issued in it or before; -1: before the first step."""
    latest = {-1: 0.0} | dict.fromkeys((op.step for op in ops), 0.0)
    for op, end in zip(ops, ends, strict=True):
        if op.kind == GPU:
            latest[op.step] = max(latest[op.step], end)
    reached = 0.0
    for step in sorted(latest):
        reached = latest[step] = max(latest[step], reached)
    return latest


def clock_of(asked: str, replay: Replay, run: Run) -> str:
    """The clock of the steps: the GPU's if on any rank it ends steps far behind its host.

    One step alone has no end before it to count from; then it is the host's.
    """
    if asked != "auto":
        return asked
    for nodes, start, end in zip(replay.programs, run.start, run.end, strict=True):
        if _has_earlier_work(nodes) and _falls_behind(nodes, start[0], end[0]):
            return "gpu"
    return "host"


def _has_earlier_work(nodes: Sequence[Node]) -> bool:
    """Whether a step has GPU work before it."""
    steps = {node.op.step for node in nodes if node.op.kind == MARK}
    return len(steps) > 1 or any(
        node.op.step < 0 for node in nodes if node.op.kind == GPU
    )


def _falls_behind(nodes: Sequence[Node], start: np.ndarray, end: np.ndarray) -> bool:
    """Whether the GPU ends a step far behind its host, as recorded or as simulated."""
    ops = [node.op for node in nodes]
    measured = _gpu_ends(ops, [op.finish for op in ops])
    simulated = _simulated_ends(nodes, end)
    begins = {op.name: op.start for op in ops if op.kind == MARK}
    for i, op in enumerate(ops):
        mark, _, name = op.name.partition(" ")
        if op.kind != MARK or mark != "end":
            continue
        behind = measured[op.step] - op.start, simulated[op.step] - float(start[i])
        if max(behind) > BEHIND * (op.start - begins[f"begin {name}"]):
            return True
    return False
