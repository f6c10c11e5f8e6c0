"""What `prestep replay` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json, misused, talk
from prestep.sim.replay import job_changes, report, stragglers
from prestep.sim.replay.outcome import Outcome
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.trace import write_trace
from prestep.sim.tools.catalog import find_scenario
from prestep.workloads.traces import jobs
from prestep.workloads.traces.operations import Operations

#: Options that a file of a whole job does not take, in the order of `replay`'s use of them, and why.
REFUSED = {
    "--cluster": "no such option with a file of a whole job: it has no kernels and no sizes to place on a cluster",
    "--comm": "no such option with a file of a whole job: transfers have times and no bytes",
    "--ranks": "no such option with a file of a whole job: what more ranks exchange depends on bytes that it has not",
    "--steps": "no such option with a file of a whole job: means and medians are those of all steps",
    "--compare": "no such option with a file of a whole job: it has no kernels to compare",
    "--trace": "no such option with a file of a whole job: it is one already",
}


def replay(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    cluster: str,
    comm: Any,
    clock: str,
    ranks: int | None,
    steps: str,
    free: bool,
    compare: str | None,
    json_: bool,
    trace: Path | None,
) -> None:
    if any(map(jobs.is_job, files)):
        stated = (cluster, comm, ranks, steps, compare, trace)
        _refuse_for_jobs(files, dict(zip(REFUSED, stated, strict=True)))
        _stragglers(files[0], overrides, free, json_)
        return
    if compare is not None:
        _refuse_changes(comm, ranks, free, trace)
        _compare(files, compare, cluster, overrides, clock, steps, json_)
        return
    replicas = () if ranks is None else (f"parallel.dp={ranks}",)
    changes = (*overrides, *replicas)
    outcome = replay_files(files, comm, cluster, changes, clock, free, steps)
    _show(outcome, json_, trace)


def _show(outcome: Outcome, json_: bool, trace: Path | None) -> None:
    """Writes the tracks of a replay where they are asked for, and prints it."""
    if trace is not None:
        write_trace(outcome, trace)
        talk(f"wrote {trace}")
    if json_:
        echo_json(report.as_json(outcome))
    else:
        show_page(report.as_text(outcome))


def _refuse_for_jobs(files: tuple[Path, ...], stated: Mapping[str, object]) -> None:
    """Options and files that do not go with a file of a whole job."""
    for option, value in stated.items():
        if value:
            raise misused(option, str(value), REFUSED[option])
    if len(files) > 1:
        found = f"{len(files)} files, one of a whole job among them"
        raise misused("FILE", found, "that file alone")


def _stragglers(
    file: Path, overrides: tuple[str, ...], free: bool, json_: bool
) -> None:
    """What slow ranks, stages and kinds of operations cost a job of which one file holds all ranks."""
    job = jobs.read(file)
    changes = job_changes.parsed(overrides, job)
    analysis = stragglers.analysed(job, lambda times: changes.made(job, times))
    rows = _freed(job, changes) if free else []
    if json_:
        table = stragglers.as_json(analysis) | {"changes": list(overrides)}
        echo_json(table | ({"free": rows} if free else {}))
        return
    show_page(stragglers.as_text(analysis))
    if free:
        show_page(stragglers.free_text(rows))


def _freed(job: Operations, changes: job_changes.JobChanges) -> list[dict[str, Any]]:
    """The step if kinds of operations took no time, beside the changes."""
    return job_changes.free(job, changes.made(job, stragglers.times_of(job)))


def _compare(
    files: tuple[Path, ...],
    scenario: str,
    cluster: str,
    overrides: tuple[str, ...],
    clock: str,
    steps: str,
    json_: bool,
) -> None:
    """The run as it was, beside the prediction of its program."""
    from prestep.sim.replay import (
        compared,  # the predictor, which other replays start without
    )

    outcome = replay_files(files, clock=clock, steps=steps)
    key = "file" if cluster.endswith(".toml") else "name"
    place = (f"cluster.{key}={cluster}",) if cluster else ()
    comparison = compared.compare(
        outcome, find_scenario(scenario), (*place, *overrides)
    )
    if json_:
        echo_json(compared.as_json(comparison))
    else:
        show_page(compared.as_text(comparison))


def _refuse_changes(
    comm: object, ranks: int | None, free: bool, trace: Path | None
) -> None:
    """Options that change the replay, which a comparison leaves as it was."""
    stated = {"--comm": comm, "--ranks": ranks, "--free": free, "--trace": trace}
    for option, value in stated.items():
        if value:
            raise misused(option, str(value), "no such option beside --compare")
