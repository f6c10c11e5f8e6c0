"""The commands `prestep replay` and `prestep convert`; like `cli.py`, they parse, call one function, and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def add(main: click.Group, explained: Wrapper, changes: Wrapper, as_json: Wrapper) -> None:
    """Adds the commands to the group, with the options and the errors that all commands share."""

    @main.command()
    @click.argument("files", nargs=-1, required=True, metavar="DIR|FILE...", type=click.Path(path_type=Path))
    @changes
    @click.option("--cluster", default="", metavar="NAME|FILE", help="Replay on this cluster; `prestep list clusters`.")
    @click.option("--comm", type=click.Choice(["recorded", "simulated"]), help="Transfers as they were, or anew.")
    @click.option("--clock", type=click.Choice(["auto", "host", "gpu"]), default="auto", help="What counts the steps.")
    @click.option("--free", is_flag=True, help="Also: the step if each kernel family and link kind took no time.")
    @as_json
    @click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write tracks for Perfetto (.json).")
    @explained
    def replay(
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

    @main.command()
    @click.argument("files", nargs=-1, required=True, metavar="DIR|FILE...", type=click.Path(path_type=Path))
    @click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File; one a rank if several.")
    @click.option("--to", type=click.Choice(["chakra", "kineto", "table"]), help="Format; default: by the ending.")
    @explained
    def convert(files: tuple[Path, ...], output: Path, to: str | None) -> None:
        """Write traces as Chakra (.et), Kineto (.json, .json.gz) or a table (.parquet, .arrow)."""
        from workloads import traces
        from workloads.traces.convert import convert as write
        from workloads.traces.convert import format_for

        format_for(output, to or "")
        for path in write(traces.read(files), output, to or ""):
            click.echo(f"wrote {path}", err=True)
