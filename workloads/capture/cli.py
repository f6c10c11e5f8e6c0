"""Record a step of your own program, unchanged and without a GPU: `prestep capture -o job.capture -- train.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily

with lazily():
    from prestep.workloads.capture import page, recorder, recording, summary

GROUP = "Your programs, traces and machines"


class Capture(click.Command):
    """`prestep capture show` is a command of its own; everything else is a program to capture."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] == ["show"]:
            return show.make_context(f"{info_name} show", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(epilog="Example: prestep capture show job.capture")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--rank", type=click.IntRange(0), help="What this rank does; default: the first."
)
@shared.as_json
@shared.explained
def show(file: Path, rank: int | None, json_: bool) -> None:
    """Print what a recording has: operations, communication, waits, what was assumed."""
    whole = recording.read(file)
    counted = [summary.summary(whole, each) for each in _chosen(whole, rank)]
    if json_:
        shared.echo_json(page.as_tables(whole, counted))
        return
    for number, (heading, lines) in enumerate(page.sections(file, whole, counted)):
        click.echo(("\n" if number else "") + click.style(heading, bold=True))
        shared.show_page("\n".join(lines))


def _chosen(
    whole: recording.Recording, rank: int | None
) -> list[recording.RankRecording]:
    """All ranks that were run, or the one that stands for a rank."""
    if rank is None:
        return list(whole.ranks)
    for each in whole.ranks:
        if rank in each.represents:
            return [each]
    expected = f"a rank of {summary.ranges(range(whole.world))}"
    raise shared.misused("--rank", str(rank), expected)


AT_LEAST_ONE = click.IntRange(1)
#: What follows the script is the program's own.
TO_THE_PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(
    cls=Capture,
    help=__doc__,
    context_settings=TO_THE_PROGRAM,
    epilog="\b\n"
    "Examples:\n"
    "  prestep capture -o job.capture -- train.py --config my.yaml\n"
    "  prestep capture --world 64 -o job.capture -- train.py\n"
    "  prestep capture show job.capture\n"
    "  prestep run job.capture --cluster rail-h100 --set cluster.hosts=8\n",
)
@click.option(
    "--world", type=AT_LEAST_ONE, default=1, help="Ranks, as for torchrun; default 1."
)
@click.option(
    "--gpus-per-host", type=AT_LEAST_ONE, default=8, help="Ranks of a host; default 8."
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
    "--ranks",
    metavar="0,3-5",
    help="Ranks to run beside those that are found to differ.",
)
@click.option(
    "--assume",
    default="experts=balanced",
    metavar="experts=balanced|F",
    help="Where routers send tokens, which nobody computes: to all experts alike, or F times the mean to the first of "
    "them; default experts=balanced.",
)
@click.option(
    "--mark",
    default="",
    metavar="NAME",
    help="Name of the NVTX or profiler ranges that steps begin with (iteration*); default: a step ends with an update "
    "of weights.",
)
@click.option("--stop", is_flag=True, help="End the program once its step is recorded.")
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
@shared.explained
def command(
    output: Path,
    command_line: tuple[str, ...],
    ranks: str | None,
    assume: str,
    **options: Any,
) -> None:
    _check(output, command_line[0])
    tables = recorder.captured(
        command_line,
        output,
        ranks=_ranks(ranks, options["world"]) if ranks else (),
        busiest=_busiest(assume),
        tell=_progress,
        **options,
    )
    _tell(output, tables)


def _progress(line: str) -> None:
    click.echo(f"prestep capture: {line}", err=True)


def _check(output: Path, script: str) -> None:
    """Names of files that cannot be meant."""
    if output.suffix != ".capture":
        raise shared.misused("--output", str(output), "a name that ends with .capture")
    if not Path(script).is_file():
        there = "a Python script that is there"
        raise InputError.of("capture", "", script, there)


def _ranks(text: str, world: int) -> tuple[int, ...]:
    """The ranks in "0,3-5"."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            raise shared.misused("--ranks", text, "ranks such as 0,3-5") from None
        if not 0 <= low <= high < world:
            raise shared.misused(
                "--ranks", text, f"rising ranks below {world}, the world"
            )
        ranks |= set(range(low, high + 1))
    return tuple(sorted(ranks))


def _busiest(text: str) -> float:
    """Tokens of the first expert over those of the mean one, in "experts=balanced" or "experts=1.5"."""
    what, _, value = text.partition("=")
    try:
        factor = 1.0 if value == "balanced" else float(value)
    except ValueError:
        factor = 0.0
    if what != "experts" or not 1.0 <= factor < float("inf"):
        expected = "experts=balanced, or experts=F with F from 1 on"
        raise shared.misused("--assume", text, expected)
    return factor


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
    assumed = tables["assumed"]
    assert isinstance(assumed, dict)
    for what in sorted(assumed):
        if what.startswith("experts"):
            click.echo(f"assumed: {what}; --assume says otherwise", err=True)
