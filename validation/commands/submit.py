"""Check measurements that you want to give (JSON lines), predict them, and write the file for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import as_json, explained, file_option, handler

GROUP = "Trust"


@click.command(
    help=__doc__ + " Exit 1: a row can hardly be true, and nothing is written.",
    epilog="Example: prestep submit rows.jsonl -o lab/cases/submitted/me-2026-03.jsonl",
)
@click.argument("rows", type=click.Path(path_type=Path, dir_okay=False))
@file_option("-o", "--output", text="File to write; without it rows are only checked.")
@as_json
@explained
def command(**options: Any) -> None:
    handler("submit", f"{__package__}.handlers").submit(**options)
