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
    file_option,
    misused,
    show_page,
    show_result,
    talk,
    together,
)
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim import sheets
    from prestep.sim.replay import comparison as comparisons
    from prestep.sim.replay import job_changes, stragglers
    from prestep.sim.replay import replay as replays
    from prestep.sim.replay import report as reports
    from prestep.sim.replay import trace as tracks
    from prestep.sim.tools import catalog
    from prestep.workloads.traces import jobs

GROUP = "Your programs, traces and machines"
#: Options that change the replay, which a comparison leaves as it was.
CHANGES = ("--comm", "--ranks", "--free", "--trace", "--report")
#: Options that a file of a whole job does not take, and why.
REFUSED = {
    "--cluster": "no such option with a file of a whole job: it has no kernels and no sizes to place on a cluster",
    "--comm": "no such option with a file of a whole job: transfers have times and no bytes",
    "--ranks": "no such option with a file of a whole job: what more ranks exchange depends on bytes that it has not",
    "--steps": "no such option with a file of a whole job: means and medians are those of all steps",
    "--compare": "no such option with a file of a whole job: it has no kernels to compare",
    "--trace": "no such option with a file of a whole job: it is one already",
    "--report": "no such option with a file of a whole job: its table is the answer",
}


#: Where the run is played again.
_PLACE = together(
    click.option(
        "--cluster",
        default="",
        metavar="NAME|FILE",
        help="Replay on this cluster; `prestep list clusters`.",
    ),
    click.option(
        "--comm",
        type=click.Choice(["recorded", "simulated"]),
        help="Transfers as they were, or anew.",
    ),
    click.option(
        "--clock",
        type=click.Choice(["auto", "host", "gpu"]),
        default="auto",
        help="What counts the steps.",
    ),
    click.option(
        "--ranks",
        type=click.IntRange(1),
        help="On so many data-parallel ranks: --set parallel.dp=N.",
    ),
)


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
@_PLACE
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
@file_option("--report", text="Write the answer as a page (.html) or Markdown (.md).")
@click.option(
    "--trace",
    metavar="FILE|DIR/",
    type=click.Path(path_type=Path),
    help="Write tracks for Perfetto (.json); into a folder, the simulated run as Kineto, one file per rank (for HTA).",
)
@explained
def command(
    files: tuple[Path, ...], overrides: tuple[str, ...], json_: bool, **stated: Any
) -> None:
    if any(map(jobs.is_job, files)):
        _refuse(stated, REFUSED)
        _stragglers(files, overrides, stated["free"], json_)
    elif stated["compare"] is not None:
        _refuse(stated, dict.fromkeys(CHANGES, "no such option beside --compare"))
        _compare(files, overrides, json_, **stated)
    else:
        _replay(files, overrides, json_, **stated)


def _refuse(stated: Mapping[str, object], reasons: Mapping[str, str]) -> None:
    """Refuses the first option that is stated and has a reason not to be."""
    for option, expected in reasons.items():
        if value := stated[option.removeprefix("--")]:
            raise misused(option, str(value), expected)


def _replay(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    json_: bool,
    cluster: str,
    comm: Any,
    clock: str,
    ranks: int | None,
    steps: str,
    free: bool,
    trace: Path | None,
    report: Path | None,
    **_: Any,
) -> None:
    """Replays a run, writes its tracks where they are asked for, and prints it."""
    if report is not None:
        sheets.check_suffix(report)
    replicas = () if ranks is None else (f"parallel.dp={ranks}",)
    changes = (*overrides, *replicas)
    outcome = replays.replay_files(files, comm, cluster, changes, clock, free, steps)
    if trace is not None:
        tracks.write_trace(outcome, trace)
        talk(f"wrote {trace}")
    if report is not None:
        answer, tables, chips = reports.sheets(outcome)
        sheets.write(report, f"Replay of {files[0].name}", answer, tables, chips)
        talk(f"wrote {report}")
    show_result(
        json_, lambda: reports.as_json(outcome), lambda: reports.as_text(outcome)
    )


def _stragglers(
    files: tuple[Path, ...], overrides: tuple[str, ...], free: bool, json_: bool
) -> None:
    """What slow ranks, stages and kinds of operations cost a job of which one file holds all ranks."""
    if len(files) > 1:
        found = f"{len(files)} files, one of a whole job among them"
        raise misused("FILE", found, "that file alone")
    job = jobs.read(files[0])
    changes = job_changes.parse_changes(overrides, job)
    analysis = stragglers.analyse(job, lambda times: changes.applied(job, times))
    rows = list[dict[str, Any]]()
    if free:
        rows = job_changes.free(job, changes.applied(job, stragglers.times_of(job)))
    if json_:
        table = stragglers.as_json(analysis) | {"changes": list(overrides)}
        echo_json(table | ({"free": rows} if free else {}))
        return
    show_page(stragglers.as_text(analysis))
    if free:
        show_page(stragglers.free_text(rows))


def _compare(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    json_: bool,
    compare: str,
    cluster: str,
    clock: str,
    steps: str,
    **_: Any,
) -> None:
    """The run as it was, beside the prediction of its program."""
    outcome = replays.replay_files(files, clock=clock, steps=steps)
    key = "file" if cluster.endswith(".toml") else "name"
    place = (f"cluster.{key}={cluster}",) if cluster else ()
    path = catalog.find_scenario(compare)
    comparison = comparisons.compare(outcome, path, (*place, *overrides))
    show_result(
        json_,
        lambda: comparisons.as_json(comparison),
        lambda: comparisons.as_text(comparison),
    )
