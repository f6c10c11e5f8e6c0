"""What `prestep convert` does."""

from __future__ import annotations

from pathlib import Path

from sim.commands._shared import talk
from workloads import traces
from workloads.traces import convert as formats


def convert(files: tuple[Path, ...], output: Path, to: str | None) -> None:
    formats.format_for(
        output, to or ""
    )  # a wrong ending is told before traces are read
    for path in formats.convert(traces.read(files), output, to or ""):
        talk(f"wrote {path}")
