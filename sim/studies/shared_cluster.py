"""Predicts several jobs that share a cluster: one engine run on one network, one result for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from prestep.sim.analysis import metrics
from prestep.sim.analysis.json_text import text_of
from prestep.sim.analysis.link_use import Link
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.report import report
from prestep.sim.analysis.step_times import longest, median, step_times
from prestep.sim.engine.engine import Run, execute, execute_together
from prestep.sim.errors import InputError, Mistake
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import STEPS, load_fabric, plan
from prestep.sim.spec.lookup import placements
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric

# Steps of the slowest job that are measured, after those that bring it to its steady state: jobs of different step
# times meet at every phase of each other, so one step says little.
MEASURED = 6
# A job much faster than the others repeats its step while they go on, up to so many operations.
MOST_OPERATIONS = 400_000
ENDED_EARLY = "ended before the others had been measured: its steps are too many"


@dataclass(frozen=True)
class Together:
    """Results of jobs by name, and the busiest links of the cluster while all of them ran.

    Attributes
    ----------
    alone : mapping of str to float
        Step time of every job with the cluster to itself, s.
    notes : tuple of str
        What a reader has to know, such as a job that ended early.
    """

    results: Mapping[str, Prediction]
    alone: Mapping[str, float]
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values: one result for each job, in order, with what it would take alone."""
        jobs = [
            {
                "name": name,
                "alone_step_time": self.alone[name],
                "slowdown": result.step_time / self.alone[name],
            }
            | result.to_dict()
            for name, result in self.results.items()
        ]
        return {
            "jobs": jobs,
            "links": [asdict(link) for link in self.links],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text: seconds, bytes; numbers that are not finite become null."""
        return text_of(self.to_dict())


def predict(scenario: Scenario) -> Together:
    """Every job's steady step while the others run beside it.

    Each job repeats its step until all have been measured; those of a job that had the network to itself because
    others had ended do not count. A step time is the median over those steps, as a job of another step time meets it
    in every phase.

    Raises
    ------
    InputError
        With every mistake in every job; or if two want the same GPU.
    """
    fabric = load_fabric(scenario)
    jobs = _planned(scenario, fabric)
    alone = [_alone(job) for job in jobs]
    stated = [job.start for job in scenario.jobs]
    starts = _starts(stated, alone, bool(fabric.cluster_facts.tcp))
    runs, early = _steady(jobs, alone, starts)
    end = min(_marks(job, run)[-1] for job, run in zip(jobs, runs, strict=True))
    results = {
        named.name: _reported(job, run, end)
        for named, job, run in zip(scenario.jobs, jobs, runs, strict=True)
    }
    return Together(
        results,
        dict(zip(results, alone, strict=True)),
        _links(fabric, runs[0]),
        tuple(f"{scenario.jobs[at].name} {ENDED_EARLY}" for at in early),
    )


def _reported(job: Planned, run: Run, end: float) -> Prediction:
    """The prediction of a job's steps until `end`, the last moment at which every job was at work."""
    first, last = _window(job, run, end)
    measured = _cut(run, last + 1)
    return report(job, measured, by_rank=_by_rank(job, measured, first))


def _planned(scenario: Scenario, fabric: Fabric) -> list[Planned]:
    placed = placements(scenario, fabric)
    planned: list[Planned] = []
    mistakes: list[Mistake] = []
    for job, gpus in zip(scenario.jobs, placed, strict=True):
        with InputError.collected(mistakes):
            planned.append(plan(job, _routed(fabric, job), gpus))
    InputError.check(mistakes)
    return planned


def _routed(fabric: Fabric, job: Scenario) -> Fabric:
    """The cluster with the routes that a job's NCCL takes."""
    routing = replace(fabric.routing, pxn=not job.nccl.pxn_disable)
    return fabric if routing == fabric.routing else fabric.with_routing(routing)


def _starts(
    stated: Sequence[float | None], alone: Sequence[float], tcp: bool
) -> list[float]:
    """When each job begins: as it says; else over TCP all at one instant, elsewhere dealt out over a step.

    Where links are shared evenly, jobs of one step time keep the phase they began with. Those that begin at one instant
    would compute and communicate together for ever, which no two jobs do that were started by hand. TCP favours whoever
    comes later, so there they fall in step by themselves: measured (lab/cases/h200/sockets/two_jobs.jsonl).
    """
    apart = 0.0 if tcp else 1.0 / len(alone)
    return [
        time * at * apart if start is None else start
        for at, (start, time) in enumerate(zip(stated, alone, strict=True))
    ]


def _steady(
    jobs: Sequence[Planned], alone: Sequence[float], starts: Sequence[float]
) -> tuple[tuple[Run, ...], list[int]]:
    """Runs in which every job has done its steps while all others went on, and which jobs did not.

    How often a job must repeat its step for that is guessed from the steps alone, then from what came out.
    """
    least = STEPS - 1 + MEASURED
    limits = [_most_steps(job, least) for job in jobs]
    counts = _first_counts(alone, starts, limits, least)
    while True:
        runs = execute_together(list(zip(jobs, counts, starts, strict=True)))
        needed, reached = _ends(jobs, runs, least)
        early = [at for at, end in enumerate(reached) if end < needed]
        if all(counts[at] == limits[at] for at in early):
            return runs, early
        for at in early:
            longer = _more_steps(counts[at], needed, reached[at])
            counts[at] = min(limits[at], longer)


def _ends(
    jobs: Sequence[Planned], runs: Sequence[Run], least: int
) -> tuple[float, list[float]]:
    """(when all jobs have done the `least` steps, when each has done all of its own), in seconds."""
    marks = [_marks(job, run) for job, run in zip(jobs, runs, strict=True)]
    return max(ends[least - 1] for ends in marks), [float(ends[-1]) for ends in marks]


def _more_steps(steps: int, needed: float, reached: float) -> int:
    """Steps of a job that must go on until `needed` and reached less (seconds).

    A tenth more: with this job at work for longer the others take longer.
    """
    return ceil(1.1 * steps * needed / reached) + 1


def _most_steps(job: Planned, least: int) -> int:
    """Steps that a job may take, by the operations of each."""
    operations = sum(map(len, job.graph.programs))
    return max(least, MOST_OPERATIONS // operations)


def _first_counts(
    alone: Sequence[float], starts: Sequence[float], limits: Sequence[int], least: int
) -> list[int]:
    """Steps of every job until all have done the `least`, if nobody slowed anybody."""
    jobs = list(zip(alone, starts, limits, strict=True))
    horizon = max(start + least * time for time, start, _ in jobs)
    return [
        min(limit, max(least, ceil((horizon - start) / time) + 1))
        for time, start, limit in jobs
    ]


def _marks(job: Planned, run: Run) -> np.ndarray:
    """When each step had ended on all ranks (steps,)."""
    ends = [np.cumsum(times) for times in step_times(job.graph, run).values()]
    marks: np.ndarray = np.max(ends, axis=0)
    return marks


def _window(job: Planned, run: Run, end: float) -> tuple[int, int]:
    """First and last step to measure: after the start, and while every job was still at work."""
    marks = _marks(job, run)
    last = max(
        STEPS - 1, int(np.searchsorted(marks, end * (1 + 1e-12), side="right")) - 1
    )
    return STEPS - 1, min(last, len(marks) - 1)


def _alone(job: Planned) -> float:
    """Seconds of a job's step with the cluster to itself, as of jobs that run together."""
    run = execute(job, STEPS - 1 + MEASURED)
    return longest(_by_rank(job, run, STEPS - 1).values())


def _by_rank(job: Planned, run: Run, first: int) -> dict[int, float]:
    """Seconds of a step of every rank: the median over its steps from the `first` on."""
    steps = {
        rank: median(times[first:])
        for rank, times in step_times(job.graph, run).items()
    }
    return {
        member: time
        for rank, time in steps.items()
        for member in job.graph.represents[rank]
    }


def _cut(run: Run, steps: int) -> Run:
    """The first steps of a run."""
    ready = tuple(
        {g: time for g, time in ready.items() if g < steps * column.shape[1]}
        for ready, column in zip(run.ready, run.end, strict=True)
    )
    launch, start, end = (
        tuple(c[:steps] for c in columns)
        for columns in (run.launch, run.start, run.end)
    )
    return replace(run, launch=launch, start=start, end=end, ready=ready)


def _links(fabric: Fabric, run: Run) -> tuple[Link, ...]:
    names = [
        f"{a} -> {b}" for a, b in zip(fabric.links.src, fabric.links.dst, strict=True)
    ]
    links = metrics.busiest_links(
        names, run.bytes.carried, fabric.links.bandwidth, run.finished
    )
    data = dict(zip(names, run.bytes.data.tolist(), strict=True))
    return tuple(replace(link, bytes=data[link.name]) for link in links)
