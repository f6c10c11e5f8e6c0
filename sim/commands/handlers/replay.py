"""What `prestep replay` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sim.commands._shared import echo_json, talk
from sim.replay import report
from sim.replay.replay import replay_files
from sim.replay.trace import write_trace


def replay(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    cluster: str,
    comm: Any,
    clock: str,
    ranks: int | None,
    steps: str,
    free: bool,
    json_: bool,
    trace: Path | None,
) -> None:
    replicas = () if ranks is None else (f"parallel.dp={ranks}",)
    changes = (*overrides, *replicas)
    outcome = replay_files(files, comm, cluster, changes, clock, free, steps)
    if json_:
        echo_json(report.as_json(outcome))
    else:
        click.echo(report.as_text(outcome))
    if trace is not None:
        write_trace(outcome, trace)
        talk(f"wrote {trace}")
