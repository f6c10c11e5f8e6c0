"""Write traces as Chakra (.et), Kineto (.json, .json.gz) or a table (.parquet, .arrow)."""

from __future__ import annotations

from pathlib import Path

import click

from prestep.sim.commands._shared import explained, talk
from prestep.sim.extras import lazily

with lazily():
    from prestep.workloads import traces
    from prestep.workloads.traces import convert

GROUP = "Your programs, traces and machines"


@click.command(help=__doc__, epilog="Example: prestep convert run/ -o run.et")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="DIR|FILE...",
    type=click.Path(path_type=Path),
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File; one a rank if several.",
)
@click.option(
    "--to",
    type=click.Choice(["chakra", "kineto", "table"]),
    help="Format; default: by the ending.",
)
@explained
def command(files: tuple[Path, ...], output: Path, to: str | None) -> None:
    convert.format_for(
        output, to or ""
    )  # a wrong ending is told before traces are read
    for path in convert.convert(traces.read(files), output, to or ""):
        talk(f"wrote {path}")
