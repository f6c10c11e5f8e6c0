"""Look at this environment (versions, packages in the way, what is missing), or say whether a log of NCCL is normal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import (
    EXIT_OUTSIDE,
    as_json,
    changes,
    explained,
    show_result,
    together,
)
from prestep.sim.extras import lazily

with lazily():
    from prestep import topologies
    from prestep.sim.collectives import report
    from prestep.sim.tools import doctor
    from prestep.topologies.edit import overrides as changes_of
    from prestep.validation.doctor import diagnosis as diagnoses
    from prestep.validation.doctor import logs as readers
    from prestep.validation.doctor import page, recognise, sweep

GROUP = "Trust"


@click.group(
    help=__doc__ + " Exit 1 if something is wrong.",
    invoke_without_command=True,
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor --json\n"
    "  prestep doctor nccl all_reduce_perf.log --cluster dgx-h100\n",
)
@as_json
@click.pass_context
@explained
def command(context: click.Context, json_: bool) -> None:
    if context.invoked_subcommand is not None:
        return
    findings = doctor.examined()
    table = doctor.to_json(findings)
    lines = (doctor.in_short(findings), "", *map(str, findings))
    show_result(json_, lambda: table, lambda: "\n".join(lines))
    sys.exit(0 if table["good"] else EXIT_OUTSIDE)


#: What the logs may not say of their run.
_RUN = together(
    click.option(
        "--cluster",
        metavar="NAME|FILE",
        help="What the log should have run on; default: recognised from the log.",
    ),
    click.option(
        "--hosts",
        type=click.IntRange(1),
        help="Hosts of the run, where no log says it.",
    ),
    click.option(
        "--op", default="", help="Operation, where no log says it: all_reduce."
    ),
)


@command.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor nccl all_reduce_perf.log\n"
    "  prestep doctor nccl perf/*.log nccl-debug.log --cluster mine.toml --json\n"
)
@click.argument(
    "logs",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@_RUN
@changes
@as_json
@explained
def nccl(
    logs: Sequence[Path],
    cluster: str | None,
    hosts: int | None,
    op: str,
    overrides: tuple[str, ...],
    json_: bool,
) -> None:
    """Is this log of nccl-tests (text or -J) or NCCL_DEBUG normal, and if not, why? Exit 1 if it is abnormal."""
    settings, links, numa = report.settings_of(overrides)
    run = readers.read(logs, op.replace("-", "_"), hosts)
    if not any(item.startswith("nccl.version") for item in overrides):
        settings = replace(settings, version=run.version)
    fabric = _fabric(run, cluster)
    if fabric is not None:
        fabric = report.with_processes(
            changes_of.with_overrides(fabric, links, "--set"), numa
        )
    here = sweep.Situation(fabric, settings, sweep.series_of(run.rows))
    diagnosis = diagnoses.diagnosed(here, run.lines)
    name = fabric.name if fabric is not None else ""
    show_result(
        json_,
        lambda: page.as_json(diagnosis, run, name),
        lambda: page.as_text(diagnosis, run, name),
    )
    sys.exit(EXIT_OUTSIDE if diagnosis.abnormal else 0)


def _fabric(run: readers.Run, cluster: str | None) -> Any:
    """The cluster that was named, or the one that the logs tell; none where nothing was timed."""
    if cluster is None:
        return recognise.recognised(run) if run.rows else None
    fabric = topologies.load_cluster(cluster)
    return (
        fabric
        if len(fabric.hosts) >= run.hosts
        else topologies.load_cluster(cluster, run.hosts)
    )
