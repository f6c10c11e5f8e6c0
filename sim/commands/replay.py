"""The command `prestep replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sim.commands._shared import as_json, changes, explained


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="DIR|FILE...", type=click.Path(path_type=Path))
@changes
@click.option("--cluster", default="", metavar="NAME|FILE", help="Replay on this cluster; `prestep list clusters`.")
@click.option("--comm", type=click.Choice(["recorded", "simulated"]), help="Transfers as they were, or anew.")
@click.option("--clock", type=click.Choice(["auto", "host", "gpu"]), default="auto", help="What counts the steps.")
@click.option("--free", is_flag=True, help="Also: the step if each kernel family and link kind took no time.")
@as_json
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write tracks for Perfetto (.json).")
@explained
def command(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    cluster: str,
    comm: Any,
    clock: str,
    free: bool,
    json_: bool,
    trace: Path | None,
) -> None:
    """Replay traces of a real run, one file per rank; with changes, say what they would do."""
    from sim import replay_report
    from sim.replay import replay_files

    outcome = replay_files(files, comm, cluster, overrides, clock, free)
    page = json.dumps(replay_report.as_json(outcome), indent=2) if json_ else replay_report.as_text(outcome)
    click.echo(page)
    if trace is not None:
        replay_report.write_trace(outcome, trace)
        click.echo(f"wrote {trace}", err=True)
