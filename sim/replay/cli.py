"""Replay traces of a real run, one file per rank; with changes, say what they would do.

\b
prestep replay run/                                     as it was
prestep replay run/ --comm simulated                    on its own cluster
prestep replay run/ --cluster dgx-h100 --set dp=8       elsewhere, 8 replicas
prestep replay run/ --set nvlink.bandwidth=0.5x --json  slower links
prestep replay run/ --set kernels.gemm=0.5x --steps 2   faster gemm, one step
Changes of a replay: docs/traces.md, "Changes".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import (
    as_json,
    changes,
    echo_json,
    explained,
    misused,
    show_page,
    talk,
)
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.replay import compared, job_changes, report, stragglers
    from prestep.sim.replay import outcome as outcomes
    from prestep.sim.replay import replay as replays
    from prestep.sim.replay import trace as tracks
    from prestep.sim.tools import catalog
    from prestep.workloads.traces import jobs, operations

GROUP = "Your programs, traces and machines"
#: Options that a file of a whole job does not take, in the order of `replay`'s use of them, and why.
REFUSED = {
    "--cluster": "no such option with a file of a whole job: it has no kernels and no sizes to place on a cluster",
    "--comm": "no such option with a file of a whole job: transfers have times and no bytes",
    "--ranks": "no such option with a file of a whole job: what more ranks exchange depends on bytes that it has not",
    "--steps": "no such option with a file of a whole job: means and medians are those of all steps",
    "--compare": "no such option with a file of a whole job: it has no kernels to compare",
    "--trace": "no such option with a file of a whole job: it is one already",
}


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep replay run/ --set nvlink.bandwidth=0.5x\n"
    "  prestep replay rank0.json.gz --set parallel.dp=4\n"
    "  prestep replay rank0.json.gz --compare job.capture\n",
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="DIR|FILE...",
    type=click.Path(path_type=Path),
)
@changes
@click.option(
    "--cluster",
    default="",
    metavar="NAME|FILE",
    help="Replay on this cluster; `prestep list clusters`.",
)
@click.option(
    "--comm",
    type=click.Choice(["recorded", "simulated"]),
    help="Transfers as they were, or anew.",
)
@click.option(
    "--clock",
    type=click.Choice(["auto", "host", "gpu"]),
    default="auto",
    help="What counts the steps.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="On so many data-parallel ranks: --set parallel.dp=N.",
)
@click.option(
    "--steps",
    default="",
    metavar="LIST",
    help="Report these steps only: 2, 3-5, or names.",
)
@click.option(
    "--free",
    is_flag=True,
    help="Also: the step if each kernel family and link kind took no time.",
)
@click.option(
    "--compare",
    metavar="SCENARIO",
    help="Beside the run as it was, the prediction of its program, with --cluster and --set: a .capture, a scenario.",
)
@as_json
@click.option(
    "--trace",
    metavar="FILE|DIR/",
    type=click.Path(path_type=Path),
    help="Write tracks for Perfetto (.json); into a folder, the simulated run as Kineto, one file per rank (for HTA).",
)
@explained
def command(
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
    outcome = replays.replay_files(files, comm, cluster, changes, clock, free, steps)
    _show(outcome, json_, trace)


def _show(outcome: outcomes.Outcome, json_: bool, trace: Path | None) -> None:
    """Writes the tracks of a replay where they are asked for, and prints it."""
    if trace is not None:
        tracks.write_trace(outcome, trace)
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


def _freed(
    job: operations.Operations, changes: job_changes.JobChanges
) -> list[dict[str, Any]]:
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
    outcome = replays.replay_files(files, clock=clock, steps=steps)
    key = "file" if cluster.endswith(".toml") else "name"
    place = (f"cluster.{key}={cluster}",) if cluster else ()
    comparison = compared.compare(
        outcome, catalog.find_scenario(scenario), (*place, *overrides)
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
