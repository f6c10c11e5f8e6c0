"""The command `prestep convert`."""

from __future__ import annotations

from pathlib import Path

import click

from sim.commands._shared import explained


@click.command(epilog="Example: prestep convert run/ -o run.et")
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
    """Write traces as Chakra (.et), Kineto (.json, .json.gz) or a table (.parquet, .arrow)."""
    from workloads import traces
    from workloads.traces.convert import convert as write
    from workloads.traces.convert import format_for

    format_for(output, to or "")
    for path in write(traces.read(files), output, to or ""):
        click.echo(f"wrote {path}", err=True)
