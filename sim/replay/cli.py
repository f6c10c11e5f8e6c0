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

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import as_json, changes, explained, handler

GROUP = "Your programs, traces and machines"


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
def command(**options: Any) -> None:
    handler("command", __package__).replay(**options)
