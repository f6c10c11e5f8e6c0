"""Where the ranks of a scenario are: [placement] and [cluster] hostfile, for one job or several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.sections import Scenario
from prestep.topologies.edit.placement import place


def ranks_of(scenario: Scenario) -> int:
    """GPUs that a job takes."""
    p = scenario.parallel
    return p.dp * p.tp * p.pp * p.cp


def allotted(scenario: Scenario, fabric: Any) -> int:
    """GPUs that the job must fill: as many as it takes where a placement says which, else all of the cluster."""
    return ranks_of(scenario) if _says_where(scenario) else len(fabric.gpus)


def _says_where(scenario: Scenario) -> bool:
    p = scenario.placement
    told = (p.gpus, p.hosts, p.hostfile, p.slots, p.leaves, scenario.cluster.hostfile)
    return bool(scenario.name) or any(value is not None for value in told)


def placements(scenario: Scenario, fabric: Any) -> list[tuple[str, ...]]:
    """GPU of every rank of every job (of the scenario itself, where it is one job).

    Jobs that name their hosts or GPUs have them; the others then take what is left, in order.

    Raises
    ------
    InputError
        With every job that does not fit.
    """
    jobs = scenario.jobs or (scenario,)
    said = [
        job
        for job in jobs
        if job.placement.gpus or job.placement.hosts or job.placement.hostfile
    ]
    found: dict[str, tuple[str, ...]] = {}
    mistakes: list[Mistake] = []
    for job in (*said, *(job for job in jobs if job not in said)):
        taken = tuple(gpu for gpus in found.values() for gpu in gpus)
        try:
            found[job.name] = _of(job, fabric, taken)
        except InputError as error:
            mistakes += error.mistakes
            found[job.name] = ()
    if mistakes:
        raise InputError(mistakes)
    return [found[job.name] for job in jobs]


def _of(job: Scenario, fabric: Any, taken: tuple[str, ...]) -> tuple[str, ...]:
    wanted, file = job.placement, job.cluster.hostfile
    where = f"{job.where}: placement"
    if file is not None:
        if any(
            value is not None for value in (wanted.gpus, wanted.hosts, wanted.hostfile)
        ):
            hint = "both say which hosts"
            raise InputError(
                Mistake(
                    job.where, "cluster.hostfile", file, "no [placement] of hosts", hint
                )
            )
        wanted = replace(wanted, hostfile=file)
    return place(fabric, ranks_of(job), wanted, where, taken)
