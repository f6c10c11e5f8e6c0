"""Predicts several jobs that share a cluster: one engine run on one network, one result for each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.analysis import metrics
from sim.analysis.prediction import Link, Result, finite
from sim.analysis.report import result_of, step_times
from sim.engine.engine import Run, execute, execute_together
from sim.errors import InputError, Mistake
from sim.predict import STEPS, Prepared, load_fabric, prepare
from sim.spec.placing import placements

if TYPE_CHECKING:
    from sim.spec.sections import Scenario
    from topologies.fabric import Fabric

# Steps of the slowest job that are measured, after those that bring it to its steady state: jobs of different step
# times meet at every phase of each other, so one step says little.
MEASURED = 6
# A job much faster than the others repeats its step while they go on, up to so many operations.
MOST_OPERATIONS = 400_000


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

    results: Mapping[str, Result]
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
        return json.dumps(
            finite(self.to_dict()), indent=2, allow_nan=False, default=str
        )


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
    jobs = _prepared(scenario, fabric)
    alone = [
        _step(job, execute(job.lowered.graph, job.machine, STEPS - 1 + MEASURED))
        for job in jobs
    ]
    runs, early = _steady(jobs, alone, _starts(jobs, alone))
    end = min(_marks(job, run)[-1] for job, run in zip(jobs, runs, strict=True))
    results = {}
    for job, run in zip(jobs, runs, strict=True):
        window = _window(job, run, end)
        simulation = job.simulation(_cut(run, window[1] + 1))
        steps = {
            member: float(np.median(times[window[0] : window[1] + 1]))
            for rank, times in step_times(job.lowered.graph, simulation.run).items()
            for member in job.lowered.graph.represents[rank]
        }
        results[job.scenario.name] = result_of(simulation, by_rank=steps)
    notes = tuple(
        f"{name} ended before the others had been measured: its steps are too many"
        for name in early
    )
    return Together(
        results, dict(zip(results, alone, strict=True)), _links(fabric, runs[0]), notes
    )


def _prepared(scenario: Scenario, fabric: Fabric) -> list[Prepared]:
    placed = placements(scenario, fabric)
    made: list[Prepared] = []
    mistakes: list[Mistake] = []
    for job, gpus in zip(scenario.jobs, placed, strict=True):
        routed = replace(fabric.routing, pxn=not job.nccl.pxn_disable)
        try:
            made.append(
                prepare(
                    job,
                    fabric if routed == fabric.routing else fabric.with_routing(routed),
                    gpus,
                )
            )
        except InputError as error:
            mistakes += error.mistakes
    if mistakes:
        raise InputError(mistakes)
    return made


def _starts(jobs: Sequence[Prepared], alone: Sequence[float]) -> list[float]:
    """When each job begins: as it says, else dealt out over a step.

    Jobs of one step time that begin at one instant would compute and communicate together for ever, which no two jobs
    do that were started by hand: they leave the network idle in turns, and share it when all want it.
    """
    return [
        time * at / len(jobs) if job.scenario.start is None else job.scenario.start
        for at, (job, time) in enumerate(zip(jobs, alone, strict=True))
    ]


def _steady(
    jobs: Sequence[Prepared], alone: Sequence[float], starts: Sequence[float]
) -> tuple[tuple[Run, ...], list[str]]:
    """Runs in which every job has done its steps while all others went on, and the names of those that did not.

    How often a job must repeat its step for that is guessed from the steps alone, then from what came out.
    """
    least = STEPS - 1 + MEASURED
    most = [
        max(least, MOST_OPERATIONS // sum(map(len, job.lowered.graph.programs)))
        for job in jobs
    ]
    horizon = max(
        start + least * time for start, time in zip(starts, alone, strict=True)
    )
    counts = [
        min(limit, max(least, ceil((horizon - start) / time) + 1))
        for start, time, limit in zip(starts, alone, most, strict=True)
    ]
    while True:
        runs = execute_together(
            [
                (job.lowered.graph, job.machine, n, start)
                for job, n, start in zip(jobs, counts, starts, strict=True)
            ]
        )
        marks = [_marks(job, run) for job, run in zip(jobs, runs, strict=True)]
        needed = max(ends[least - 1] for ends in marks)
        early = [at for at, ends in enumerate(marks) if ends[-1] < needed]
        if all(counts[at] == most[at] for at in early):
            return runs, [jobs[at].scenario.name for at in early]
        for at in (
            early
        ):  # a tenth more: with this job at work for longer the others take longer
            counts[at] = min(
                most[at], ceil(1.1 * counts[at] * needed / marks[at][-1]) + 1
            )


def _marks(job: Prepared, run: Run) -> np.ndarray:
    """When each step had ended on all ranks (steps,)."""
    ends = [np.cumsum(times) for times in step_times(job.lowered.graph, run).values()]
    marks: np.ndarray = np.max(ends, axis=0)
    return marks


def _window(job: Prepared, run: Run, end: float) -> tuple[int, int]:
    """First and last step to measure: after the start, and while every job was still at work."""
    marks = _marks(job, run)
    last = max(
        STEPS - 1, int(np.searchsorted(marks, end * (1 + 1e-12), side="right")) - 1
    )
    return STEPS - 1, min(last, len(marks) - 1)


def _step(job: Prepared, run: Run) -> float:
    """Median over steps and ranks, as for jobs that run together."""
    return float(
        np.median(
            [
                times[STEPS - 1 :]
                for times in step_times(job.lowered.graph, run).values()
            ]
        )
    )


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
    return metrics.busiest_links(
        names, run.carried, fabric.links.bandwidth, run.finished
    )
