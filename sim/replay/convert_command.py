"""What `prestep convert` does."""

from __future__ import annotations

from pathlib import Path

from prestep.sim.commands._shared import talk
from prestep.workloads import traces
from prestep.workloads.traces import convert as formats


def convert(files: tuple[Path, ...], output: Path, to: str | None) -> None:
    formats.format_for(
        output, to or ""
    )  # a wrong ending is told before traces are read
    for path in formats.convert(traces.read(files), output, to or ""):
        talk(f"wrote {path}")
