"""What a scenario names, looked up: its cluster, its model, its schedule, the places of its ranks, NCCL's settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from prestep.sim.collectives.plan import mistakes_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.sim.spec.rules.layout import check_layout, too_many_gpus
from prestep.sim.spec.sections import Scenario
from prestep.topologies import load_cluster
from prestep.topologies.edit.placement import place
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.models.model import load_model

with lazily():
    from prestep.workloads import schedules


def wrong_keys(mistakes: Sequence[Mistake]) -> set[str]:
    return {mistake.key for mistake in mistakes}


def cluster_of(scenario: Scenario, mistakes: list[Mistake]) -> Any:
    """The scenario's cluster; None, and a mistake, when there is no such cluster."""
    if wrong_keys(mistakes) & {
        "cluster",
        "cluster.name",
        "cluster.file",
        "cluster.hosts",
    }:
        return None

    cluster = scenario.cluster
    try:
        return load_cluster(
            cluster.name or cluster.file or "",
            hosts=cluster.hosts,
            overrides=cluster.set,
        )
    except InputError as error:
        key = "cluster.name" if cluster.name else "cluster.file"
        for (
            mistake
        ) in error.mistakes:  # of the name itself, or in the cluster's own file
            named = (mistake.where, mistake.key) == ("cluster", "name")
            mistakes.append(
                replace(mistake, where=scenario.where, key=key) if named else mistake
            )
        mistakes += _too_small(scenario)
        return None


def _too_small(scenario: Scenario) -> list[Mistake]:
    """That the cluster has too few GPUs, where what a scenario changes there is wrong; for that may be the reason."""
    cluster = scenario.cluster
    if not cluster.set or cluster.gpus is None:
        return []
    try:
        fabric = load_cluster(cluster.name or cluster.file or "", hosts=cluster.hosts)
    except InputError:
        return []
    most = len(fabric.gpus)
    if cluster.gpus <= most:
        return []
    return [too_many_gpus(scenario, cluster.gpus, most)]


def model_of(scenario: Scenario, mistakes: list[Mistake]) -> Any:
    """The scenario's model; None, and its mistakes, when it cannot be read."""
    wrong = wrong_keys(mistakes)
    if wrong & {"model", "model.name", "model.file", "model.kind"}:
        return None

    try:
        return load_model(scenario.model, scenario.where)
    except InputError as error:
        mistakes.extend(
            mistake
            for mistake in error.mistakes
            if not mistake.key or mistake.key not in wrong
        )
        return None


def job_mistakes(
    scenario: Scenario, fabric: Any, mistakes: list[Mistake]
) -> list[Mistake]:
    """What is wrong with one job against its model, the cluster, its schedule and NCCL."""
    found: list[Mistake] = []
    known = [*mistakes, *found]
    model = model_of(scenario, known)
    found += known[len(mistakes) :]
    wrong = wrong_keys(known)
    layout = _layout_of_job(scenario, fabric, model, wrong)
    return [*found, *layout, *nccl_mistakes(scenario, wrong)]


def _layout_of_job(
    scenario: Scenario, fabric: Any, model: Any, wrong: Collection[str]
) -> list[Mistake]:
    """What is wrong with a job's layout; nothing of one that a section decides and checks itself."""
    _, other = scenario.other_run or ("", None)
    if other and other.OWN_LAYOUT:
        return []
    in_part = other is not None and other.PART_OF_CLUSTER
    gpus = None if fabric is None or in_part else allotted(scenario, fabric)
    return layout_mistakes(scenario, gpus, model, wrong)


def layout_mistakes(
    scenario: Scenario, gpus: int | None, model: Any, wrong: Collection[str] = ()
) -> list[Mistake]:
    """What is wrong with a layout on so many GPUs, its schedule included; rules on keys in `wrong` are left out."""
    return check_layout(scenario, gpus, model, skip=wrong) + pipeline_mistakes(
        scenario, wrong
    )


def place_mistakes(scenario: Scenario, fabric: Any, wrong: set[str]) -> list[Mistake]:
    """Where ranks cannot be; nothing new when the keys it rests on are already wrong."""
    sections = {key.partition(".")[0] for key in wrong}
    if fabric is None or sections & {"", "cluster", "placement", "parallel", "jobs"}:
        return []
    try:
        placements(scenario, fabric)
    except InputError as error:
        return list(error.mistakes)
    return []


def pipeline_mistakes(scenario: Scenario, wrong: Collection[str]) -> list[Mistake]:
    """What the schedule cannot run; nothing new when the keys it rests on are already wrong."""
    p, batch = (
        scenario.parallel,
        {
            "training",
            "training.global_batch",
            "training.micro_batch",
            "training.microbatches",
        },
    )
    layout = {
        "parallel",
        "parallel.pp",
        "parallel.vpp",
        "parallel.schedule",
        "parallel.dp",
    }
    if p.pp == 1 or set(wrong) & (batch | layout):
        return []

    per_run = microbatches_of(scenario) // grad_accumulation_of(scenario)
    few = framework_of(scenario).few_microbatches
    return list(
        schedules.check(
            p.schedule, p.pp, per_run, p.vpp if p.vpp > 1 else None, scenario.where, few
        )
    )


def nccl_mistakes(scenario: Scenario, wrong: set[str]) -> list[Mistake]:
    if scenario.nccl == Nccl():
        return []

    found = [
        replace(mistake, key=f"nccl.{mistake.key}")
        for mistake in mistakes_of(scenario.nccl, scenario.where)
    ]
    return [mistake for mistake in found if mistake.key not in wrong]


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
    InputError.check(mistakes)
    return [found[job.name] for job in jobs]


def _of(job: Scenario, fabric: Any, taken: tuple[str, ...]) -> tuple[str, ...]:
    wanted, file = job.placement, job.cluster.hostfile
    where = f"{job.where}: placement"
    if file is not None:
        if any(
            value is not None for value in (wanted.gpus, wanted.hosts, wanted.hostfile)
        ):
            hint = "both say which hosts"
            raise InputError.of(
                job.where, "cluster.hostfile", file, "no [placement] of hosts", hint
            )
        wanted = replace(wanted, hostfile=file)
    return place(fabric, ranks_of(job), wanted, where, taken)
