"""Step times of a run, by rank, and the one that stands for them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.engine.execution import Run
from sim.graph.opgraph import KERNEL, OpGraph


def median(times: Iterable[float]) -> float:
    """Seconds of a step of which every rank has its own: what is called its time."""
    return float(np.median(list(times)))


def by_rank(graph: OpGraph, run: Run) -> dict[int, float]:
    """Seconds of the last step of every rank, without the data that it waits for."""
    last = {rank: float(times[-1]) for rank, times in step_times(graph, run).items()}
    return {member: last[rank] for rank in last for member in graph.represents[rank]}


def step_times(graph: OpGraph, run: Run) -> dict[int, np.ndarray]:
    """Seconds between the ends of consecutive steps on the compute stream, by simulated rank (steps,)."""
    compute = graph.streams.index("compute")
    times = {}
    for program, end in zip(graph.programs, run.end, strict=True):
        marks = end[:, (program.stream == compute) & (program.kind == KERNEL)].max(
            axis=1
        )
        times[program.rank] = np.diff(np.concatenate([[0.0], marks]))
    return times
