"""Predict one training step of SCENARIO: a file, a bundled one (`prestep list scenarios`), or a trainer's recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._ranking import energy_prices
from prestep.sim.commands._shared import (
    MOST_REPLICAS,
    POSITIVE,
    as_json,
    changes,
    explained,
    file_option,
    handler,
    of_recipe,
    on_cluster,
    on_hosts,
)

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep run llama1b-ddp4 --set training.micro_batch=2 --json\n"
    "  prestep run llama1b-ddp4 --report step.html --trace step.json.gz\n"
    "  prestep run llama3_8b.toml --cluster dgx-h100 --hosts 64\n",
)
@click.argument("scenario", required=False)
@changes
@as_json
@click.option(
    "--trace",
    metavar="FILE|DIR/",
    type=click.Path(path_type=Path),
    help="Write a Chrome trace (.json or .json.gz) for Perfetto; into a folder, one file per rank (for HTA).",
)
@file_option("--timeline", text="Write the timeline as Parquet.")
@file_option("--report", text="Write the report: one HTML file that works offline.")
@click.option(
    "--each",
    multiple=True,
    metavar="WHAT",
    help="What-ifs for the report: as `whatif --each`.",
)
@click.option(
    "--trace-window",
    default="",
    metavar="FROM:TO",
    help="Only this time in the trace: 0.1s:200ms.",
)
@click.option(
    "--trace-ranks",
    default="",
    metavar="LIST",
    help="Only these ranks in the trace: 0-7,16.",
)
@click.option(
    "--strict", is_flag=True, help="Fail when the prediction rests on a fallback."
)
@click.option(
    "--fail-oom", is_flag=True, help="Fail (exit 1) when the step does not fit."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, MOST_REPLICAS),
    help="Runs with noise ([faults] jitter): their distribution.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Of the noise; default 0. The same seed gives the same runs.",
)
@click.option(
    "--max-micro-batch",
    is_flag=True,
    help="Find the largest micro batch that fits; exit 1 if none does.",
)
@click.option(
    "--energy", is_flag=True, help="Show watts and joules: GPUs, hosts, switches."
)
@click.option(
    "--price-per-gpu-hour",
    type=POSITIVE,
    metavar="PRICE",
    help="Of a GPU for an hour: the cost of the step, and of a million tokens.",
)
@energy_prices
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("run").run(**options)
