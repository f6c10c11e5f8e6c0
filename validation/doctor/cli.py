"""Look at this environment (versions, packages in the way, what is missing), or at a cluster by what it measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily

with lazily():
    from prestep import topologies
    from prestep.sim import errors, files
    from prestep.sim.exchanges import collective as reports
    from prestep.sim.tools import doctor
    from prestep.topologies.edit import overrides as changes_of
    from prestep.validation.doctor import diagnosis as diagnoses
    from prestep.validation.doctor import (
        evidence,
        html,
        page,
        recognise,
        recorded,
        stuck,
        sweep,
    )
    from prestep.validation.doctor import logs as readers

GROUP = "Trust"


@click.group(
    help=__doc__ + " Exit 1 if something is wrong.",
    invoke_without_command=True,
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor --json\n"
    "  prestep doctor nccl all_reduce_perf.log --cluster dgx-h100\n"
    "  prestep doctor cluster mine.toml perf/*.log\n",
)
@shared.as_json
@click.pass_context
@shared.explained
def command(context: click.Context, json_: bool) -> None:
    if context.invoked_subcommand is not None:
        return
    findings = doctor.examined()
    table = doctor.to_json(findings)
    lines = (doctor.in_short(findings), "", *map(str, findings))
    shared.show_result(json_, lambda: table, lambda: "\n".join(lines))
    sys.exit(0 if table["good"] else shared.EXIT_OUTSIDE)


#: What the logs may not say of their run, and how to answer.
_RUN = shared.together(
    click.option(
        "--hosts",
        type=click.IntRange(1),
        help="Hosts of the run, where no log says it.",
    ),
    click.option(
        "--op", default="", help="Operation, where no log says it: all_reduce."
    ),
    shared.changes,
    shared.file_option("--report", text="Write the answer as one HTML file."),
    shared.as_json,
    shared.explained,
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
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="What the log should have run on; default: recognised from the log.",
)
@_RUN
def nccl(logs: Sequence[Path], cluster: str | None, op: str, **options: Any) -> None:
    """Is this log of nccl-tests (text or -J) or NCCL_DEBUG normal, and if not, why? Exit 1 if it is not."""
    run = readers.read(logs, op.replace("-", "_"), options["hosts"])
    if cluster is not None:
        fabric = _fabric(cluster, run.hosts)
    else:
        fabric = recognise.recognised(run) if run.rows else None
    _answer(evidence.Evidence(run), fabric, **options)


@command.command(
    name="cluster",
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor cluster rail-h100 perf-2.log perf-8.log nccl-debug.log\n"
    "  prestep doctor cluster mine.toml train.log job.toml --report mine.html\n",
)
@click.argument("cluster", metavar="CLUSTER")
@click.argument(
    "measured",
    nargs=-1,
    required=True,
    metavar="EVIDENCE...",
    type=click.Path(path_type=Path),
)
@_RUN
def of_cluster(cluster: str, measured: Sequence[Path], op: str, **options: Any) -> None:
    """Is CLUSTER as fast as good machines by all EVIDENCE, and if not, why? Exit 1 if it is not.

    EVIDENCE: logs of nccl-tests (any operations, sizes, hosts), NCCL_DEBUG lines, traces, dumps of flight recorders,
    what nvidia-smi, ibstat, ethtool and lspci print, and training logs with the scenario or recipe that they ran.
    """
    found = evidence.read(measured, op.replace("-", "_"), options["hosts"])
    fabric = _fabric(cluster, options["hosts"] or found.run.hosts)
    found = found.with_rows(len(next(iter(fabric.gpus_by_host.values()))))
    _answer(found, _fabric(cluster, found.run.hosts), **options)


@command.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor hang nccl_trace_rank_*\n"
    "  prestep doctor hang train.log\n"
)
@click.argument(
    "dumps",
    nargs=-1,
    required=True,
    metavar="DUMP...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@shared.as_json
@shared.explained
def hang(dumps: Sequence[Path], json_: bool) -> None:
    """Which rank holds up a job? Exit 1 if one does.

    DUMP: dumps of PyTorch's flight recorder, one a rank, or logs in which its watchdog speaks.
    """
    opened = [(path, recorded.ranks_of(path)) for path in dumps]
    others = [path for path, ranks in opened if not ranks]
    if others:
        expected = (
            "a dump of PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE=2000) whose name ends in its rank, as PyTorch "
            "writes it: nccl_trace_rank_0; or a log with `last enqueued work` of its watchdog"
        )
        found = "another file, or a name without a number"
        raise errors.InputError.of(others[0].name, "", found, expected)
    ranks = [dump for _, each in opened for dump in each]
    late = stuck.delays(ranks)
    found = f"{len(ranks)} ranks: none holds the others up"
    shared.show_result(
        json_,
        lambda: stuck.SCHEMA.row(late),
        lambda: "\n".join(map(str, late)) or found,
    )
    sys.exit(shared.EXIT_OUTSIDE if late else 0)


def _answer(
    found: evidence.Evidence,
    fabric: Any,
    *,
    hosts: int | None,
    overrides: tuple[str, ...],
    report: Path | None,
    json_: bool,
) -> None:
    """Judges the evidence, prints the answer and exits."""
    settings, links, numa = reports.settings_of(overrides)
    run = found.run
    if not any(item.startswith("nccl.version") for item in overrides):
        settings = replace(settings, version=run.version)
    if fabric is not None:
        fabric = reports.with_processes(
            changes_of.with_overrides(fabric, links, "--set"), numa
        )
    series = sweep.series_of(run.rows)
    here = sweep.Situation(fabric, settings, series, found.steps)
    diagnosis = replace(diagnoses.diagnosed(here, run.lines), delays=found.delays)
    name = fabric.name if fabric is not None else ""
    if report is not None:
        files.write_text(report, html.render(diagnosis, run, name))
    shared.show_result(
        json_,
        lambda: page.as_json(diagnosis, run, name),
        lambda: page.as_text(diagnosis, run, name),
    )
    sys.exit(shared.EXIT_OUTSIDE if diagnosis.abnormal else 0)


def _fabric(cluster: str, hosts: int) -> Any:
    """The cluster that was named, with so many hosts where it has fewer."""
    fabric = topologies.load_cluster(cluster)
    enough = len(fabric.hosts) >= hosts
    return fabric if enough else topologies.load_cluster(cluster, hosts)
