"""Record a step of your own program, unchanged and without a GPU: `prestep capture -o job.capture -- train.py`."""

from __future__ import annotations

from pathlib import Path

import click

from sim.commands._shared import explained
from sim.errors import InputError, Mistake


@click.command(
    help=__doc__,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\n"
    "Examples:\n"
    "  prestep capture -o job.capture -- train.py --config my.yaml\n"
    "  prestep capture --world 64 -o job.capture -- train.py\n"
    "  prestep run job.capture --cluster rail-h100 --set cluster.hosts=8\n",
)
@click.option(
    "--world",
    type=click.IntRange(1),
    default=1,
    help="Ranks, as for torchrun; default 1.",
)
@click.option(
    "--gpus-per-host",
    type=click.IntRange(1),
    default=8,
    help="Ranks of a host; default 8.",
)
@click.option(
    "--gpu", default="h200", help="GPU that the program is told it has; default h200."
)
@click.option(
    "--step",
    type=click.IntRange(2),
    default=3,
    help="Which step is recorded; default 3.",
)
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    metavar="FILE.capture",
    type=click.Path(path_type=Path),
    help="Where the recording goes.",
)
@click.argument("command_line", nargs=-1, required=True, metavar="-- SCRIPT [ARGS]...")
@explained
def command(
    world: int,
    gpus_per_host: int,
    gpu: str,
    step: int,
    output: Path,
    command_line: tuple[str, ...],
) -> None:
    from sim.tools.program_capture import captured

    if output.suffix != ".capture":
        raise InputError(
            Mistake("--output", "", str(output), "a name that ends with .capture")
        )
    if not Path(command_line[0]).is_file():
        raise InputError(
            Mistake("capture", "", command_line[0], "a Python script that is there")
        )
    tables = captured(
        command_line,
        output,
        world=world,
        gpus_per_host=gpus_per_host,
        gpu=gpu,
        step=step,
        tell=lambda line: click.echo(f"prestep capture: {line}", err=True),
    )
    _tell(output, tables)


def _tell(output: Path, tables: dict[str, object]) -> None:
    """What was recorded, in a line or two."""
    ranks = tables["ranks"]
    assert isinstance(ranks, list)
    events = sum(len(rank["events"]) for rank in ranks)
    size = output.stat().st_size / 1e6
    click.echo(
        f"{output}: step {tables['step']}, {len(ranks)} of {tables['world']} ranks run, "
        f"{events:,} events, {size:.2f} MB",
        err=True,
    )
