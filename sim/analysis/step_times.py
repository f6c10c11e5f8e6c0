"""Step times of a run, by rank, and the one that stands for them.

A rank's step lasts from the end of its compute work of one step to that of the next. Ranks that communicate take
equally long once they are in step. Until then a rank that nothing holds back yet may be faster than the others; it
will wait for them, so the longest time is the job's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import KERNEL, OpGraph

#: Seconds of a year, beyond which nobody waits for a step or for requests to be served.
YEAR = 365 * 86400.0

# Share of a step by which ranks that communicate differ, from which on they are not yet in step.
UNLIKE = 1e-3


def longest(times: Iterable[float]) -> float:
    """Seconds of a job's step: no rank takes longer.

    Examples
    --------
    >>> longest([0.25, 0.5])
    0.5
    """
    return float(max(times))


def median(times: Iterable[float]) -> float:
    """Median of step times in seconds: of a step with noise, where the longest is that of the unluckiest rank."""
    return float(np.median(list(times)))


def spread(times: Mapping[int, float]) -> float:
    """How much longer the slowest rank's step takes than the fastest one's, as a share of it.

    Examples
    --------
    >>> spread({0: 3.0, 1: 4.0})
    0.25
    """
    slowest = max(times.values(), default=0.0)
    return (slowest - min(times.values())) / slowest if slowest > 0 else 0.0


def by_rank(graph: OpGraph, run: Run) -> dict[int, float]:
    """Seconds of the last step of every rank, without the data that it waits for."""
    last = {rank: float(times[-1]) for rank, times in step_times(graph, run).items()}
    return {member: last[rank] for rank in last for member in graph.represents[rank]}


def step_times(graph: OpGraph, run: Run) -> dict[int, np.ndarray]:
    """Seconds between the ends of consecutive steps on the compute stream, by simulated rank (steps,)."""
    return {
        rank: np.diff(np.concatenate([[0.0], ends]))
        for rank, ends in step_ends(graph, run).items()
    }


def step_ends(graph: OpGraph, run: Run) -> dict[int, np.ndarray]:
    """Second of the run at which the compute stream ends each step, by simulated rank (steps,)."""
    compute = graph.streams.index("compute")
    return {
        program.rank: end[
            :, (program.stream == compute) & (program.kind == KERNEL)
        ].max(axis=1)
        for program, end in zip(graph.programs, run.end, strict=True)
    }


def host_times(graph: OpGraph, run: Run) -> dict[int, float]:
    """Seconds of the last step of every simulated rank's host thread: between its last launches of two steps.

    0 of a run of one step.
    """
    return {
        program.rank: float(launch[-1, -1] - launch[-2, -1]) if run.steps > 1 else 0.0
        for program, launch in zip(graph.programs, run.launch, strict=True)
    }


def windows(graph: OpGraph, run: Run) -> dict[int, tuple[float, float]]:
    """Begin and end of the last step of every simulated rank, in seconds of the run."""
    return {
        rank: (float(ends[-2]) if len(ends) > 1 else 0.0, float(ends[-1]))
        for rank, ends in step_ends(graph, run).items()
    }


def last_end(graph: OpGraph, run: Run) -> float:
    """Second of the run at which the last step ends on the rank that takes longest for it.

    Of ranks that take equally long, but for rounding, the last one.
    """
    ends = step_ends(graph, run)
    last = {rank: float(times[-1]) for rank, times in step_times(graph, run).items()}
    least = max(last.values()) * (1.0 - UNLIKE)
    return max(float(ends[rank][-1]) for rank, time in last.items() if time >= least)


def check_duration(seconds: float, where: str, keys: str, what: str) -> None:
    """Raises InputError where a step, or serving, takes longer than a year.

    Examples
    --------
    >>> check_duration(0.5, "job.toml", "model, training", "a step")
    >>> check_duration(1e9, "job.toml", "model, training", "a step")
    Traceback (most recent call last):
    prestep.sim.errors.InputError: job.toml: model, training: found a step of 31.7 years, ...
    """
    if seconds <= YEAR:
        return
    found = f"{what} of {seconds / YEAR:.3g} years"
    hint = "check the sizes of the model and of the batch, or take more GPUs"
    raise InputError.of(where, keys, found, "one of at most a year", hint)
