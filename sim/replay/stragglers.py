"""What slow ranks, stages and kinds of operations cost a recorded job.

The what-ifs of "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025): the
job as if all operations of a kind took the same time, and as if only one rank's, one stage's or one kind's took the
times that they took. All steps and data-parallel ranks are played at once, as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.units import format_duration
from prestep.workloads.traces.operations import (
    COMMUNICATION,
    OPTIMIZER,
    TRANSFERS,
    Graph,
    Operations,
)

# s; clocks of ranks differ: what ends so long before its peers began, or starts before what it waits for, took no time.
CLOCKS = 1e-2


@dataclass(frozen=True)
class Times:
    """Seconds of operations by (slot, step, rank): alone, as a transfer once all have come, and the pause before it."""

    duration: np.ndarray
    transfer: np.ndarray
    pause: np.ndarray


@dataclass(frozen=True)
class Analysis:
    """Mean step times of a job, s, and slowdowns over the ideal one.

    Attributes
    ----------
    recorded, replayed, changed, ideal : np.ndarray
        Seconds by step: as recorded, as replayed with the pauses of the host, the same with changes, and ideal.
    slowdown : float
        Step time without pauses over the ideal one.
    by : dict
        "rank", "stage" or "kind" -> whose operations keep their times -> step time over the ideal one.
    """

    job: Operations
    recorded: np.ndarray
    replayed: np.ndarray
    changed: np.ndarray
    ideal: np.ndarray
    slowdown: float
    by: dict[str, dict[str, float]]

    @property
    def error(self) -> float:
        """Largest error of a replayed step, relative."""
        return float(np.max(np.abs(self.replayed / self.recorded - 1.0)))


def analyse(
    job: Operations, change: Callable[[Times], Times] = lambda times: times
) -> Analysis:
    """The what-ifs of a job, or of one whose times were changed.

    Raises
    ------
    InputError
        If its operations do not fit each other.
    """
    recorded = times_of(job)
    changed = change(recorded)
    eager = replace(changed, pause=np.zeros_like(changed.pause))
    ideal = without_stragglers(job, eager)
    best = step_times(job, ideal)

    def slowdown(mask: np.ndarray) -> float:
        """The ideal job's, in which some operations keep their times."""
        times = Times(
            np.where(mask, eager.duration, ideal.duration),
            np.where(mask, eager.transfer, ideal.transfer),
            ideal.pause,
        )
        return float(step_times(job, times).mean() / best.mean())

    return Analysis(
        job,
        job.step_times,
        step_times(job, recorded),
        step_times(job, changed),
        best,
        float(step_times(job, eager).mean() / best.mean()),
        _slowdowns(job, slowdown),
    )


def _slowdowns(
    job: Operations, slowdown: Callable[[np.ndarray], float]
) -> dict[str, dict[str, float]]:
    """By rank, stage and kind, the most first."""
    ranks = np.arange(job.ranks)[None, None, :]
    stages = np.array([slot.stage for slot in job.slots])[:, None, None]
    named = np.array([family(slot.kind) for slot in job.slots])[:, None, None]
    by = {
        "rank": {str(r): slowdown(ranks == r) for r in range(job.ranks)},
        "stage": {str(s): slowdown(stages == s) for s in range(job.stages)},
        "kind": {str(k): slowdown(named == k) for k in np.unique(named)},
    }
    return {
        name: dict(sorted(of.items(), key=lambda item: -item[1]))
        for name, of in by.items()
    }


def family(kind: str) -> str:
    """The kind under which an operation is reported: sends and receives of one way are one."""
    return f"{kind.split('-')[0]}-pp-comm" if kind in TRANSFERS else kind


def times_of(job: Operations) -> Times:
    """The times of a job as recorded."""
    graph, start, end = job.graph, job.start, job.end
    transfer, pause = np.zeros_like(start), np.zeros_like(start)
    for meeting in graph.meetings:
        come = np.max([start[i] for i in meeting], axis=0)
        for i in meeting:
            met = come.max(1, keepdims=True) if i in graph.meets_dp else come
            transfer[i] = end[i] - met
    begun = start.min((0, 2))[:, None]
    for i, before in enumerate(graph.before):
        pause[i] = start[i] - np.max([end[b] for b in before] or [begun], axis=0)
    return Times(end - start, _clocked(transfer), _clocked(pause))


def _clocked(times: np.ndarray) -> np.ndarray:
    """Times of which those that clocks make impossible are 0."""
    return np.where(times <= -CLOCKS, 0.0, times)


def without_stragglers(job: Operations, times: Times) -> Times:
    """Every operation takes what those of its kind take: kernels their mean, communication its median."""
    duration, transfer = times.duration.copy(), times.transfer.copy()
    kinds = np.array([slot.kind for slot in job.slots])
    for kind in np.unique(kinds):
        middle = np.median if kind in COMMUNICATION else np.mean
        chosen = kinds == kind
        duration[chosen] = middle(times.duration[chosen])
        transfer[chosen] = middle(times.transfer[chosen])
    return replace(times, duration=duration, transfer=transfer)


def step_times(job: Operations, times: Times) -> np.ndarray:
    """Seconds of every step: until the last optimizer of any stage and rank has run."""
    end = np.zeros_like(job.start)
    for meeting in job.graph.meetings:
        _meet(job.graph, meeting, times, end)
    last = [i for i, slot in enumerate(job.slots) if slot.kind == OPTIMIZER]
    ended: np.ndarray = end[last].max((0, 2))
    return ended


def _meet(
    graph: Graph, meeting: tuple[int, ...], times: Times, end: np.ndarray
) -> None:
    """Ends of operations that begin together, written into `end`."""
    none = np.zeros(end.shape[1:])
    starts = [
        np.max([end[b] for b in graph.before[i]] or [none], axis=0) + times.pause[i]
        for i in meeting
    ]
    come = np.max(starts, axis=0)
    for i, start in zip(meeting, starts, strict=True):
        met = come.max(1, keepdims=True) if i in graph.meets_dp else come
        carried = i in graph.transfers
        end[i] = met + times.transfer[i] if carried else start + times.duration[i]


_DECLARED = schemas_beside(__file__)
BY_STEP = _DECLARED["by_step"]
SCHEMA = _DECLARED["schema"]


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Seconds by step, slowdowns as ratios."""
    job, steps = analysis.job, [str(step) for step in analysis.job.steps]

    def by_step(times: np.ndarray) -> dict[str, float]:
        return dict(zip(steps, times.tolist(), strict=True))

    return {
        "measured_step_time": by_step(analysis.recorded),
        "simulated_step_time": by_step(analysis.changed),
        "worst_error": analysis.error,
        "ideal_step_time": float(analysis.ideal.mean()),
        "slowdown": analysis.slowdown,
        "slowdown_by": analysis.by,
        "stages": job.stages,
        "ranks": job.ranks,
    }


def as_text(analysis: Analysis) -> str:
    """The page for people."""
    job, ideal = analysis.job, float(analysis.ideal.mean())
    recorded = float(analysis.recorded.mean())
    changed = float(analysis.changed.mean())
    lines = [
        _answer(analysis, recorded, ideal),
        f"{len(job.steps)} steps; pipeline stages: {job.stages}, data-parallel ranks: {job.ranks}",
        f"mean step {format_duration(recorded)}; replayed within {analysis.error:.2%} in the worst step",
        *_changed(changed, recorded),
        f"slowdown over that ideal step, pauses of the host aside: {analysis.slowdown:.3f}",
    ]
    for name, slowdowns in analysis.by.items():
        lines += ["", f"slowdown if only the operations of one {name} kept their times"]
        lines += [
            f"  {who:<28} {ratio:.3f}" for who, ratio in list(slowdowns.items())[:8]
        ]
        if len(slowdowns) > 8:
            lines.append(f"  and {len(slowdowns) - 8} more (--json)")
    return "\n".join(lines)


def _answer(analysis: Analysis, recorded: float, ideal: float) -> str:
    """The step, what it would take without stragglers, and whose operations slow it most."""
    even = f"{format_duration(ideal)} if all operations of a kind took the same"
    times = f"A step takes {format_duration(recorded)}, and {even}"
    worst = [
        (ratio, name, who)
        for name, slowdowns in analysis.by.items()
        for who, ratio in slowdowns.items()
    ]
    if not worst:
        return f"{times}."
    _, name, who = max(worst)
    whose = who if name == "kind" else f"{name} {who}"
    return f"{times}; those of {whose} slow it most."


def _changed(changed: float, recorded: float) -> list[str]:
    """The mean step with changes, if they did anything."""
    if math.isclose(changed, recorded, rel_tol=1e-6):
        return []
    share = f"{changed / recorded - 1.0:+.1%}"
    return [f"with the changes {format_duration(changed)}, {share}"]


def free_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What would be saved if kinds of operations took no time."""
    lines = ["", f"  {'if this took no time':<28} {'step':>12} {'saved':>12}"]
    for row in rows:
        step, saved = map(format_duration, (row["step_time"], row["saved"]))
        lines.append(f"  {row['free']:<28} {step:>12} {saved:>12}")
    return "\n".join(lines)
