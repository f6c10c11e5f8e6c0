"""What `prestep capture show` does."""

from __future__ import annotations

from pathlib import Path

import click

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json, misused
from prestep.workloads.capture import recording, shown
from prestep.workloads.capture.recording import RankRecording, Recording
from prestep.workloads.capture.summary import ranges, summary


def show(file: Path, rank: int | None, json_: bool) -> None:
    """Prints what a recording has; of one rank, if it is named."""
    whole = recording.read(file)
    ranks = _chosen(whole, rank)
    counted = [summary(whole, each) for each in ranks]
    if json_:
        echo_json(shown.as_tables(whole, counted))
        return
    for number, (heading, lines) in enumerate(shown.sections(file, whole, counted)):
        text = "\n".join(lines)
        click.echo(("\n" if number else "") + click.style(heading, bold=True))
        show_page(text)


def _chosen(whole: Recording, rank: int | None) -> list[RankRecording]:
    """All ranks that were run, or the one that stands for a rank."""
    if rank is None:
        return list(whole.ranks)
    for each in whole.ranks:
        if rank in each.represents:
            return [each]
    expected = f"a rank of {ranges(range(whole.world))}"
    raise misused("--rank", str(rank), expected)
