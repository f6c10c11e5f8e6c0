"""What `prestep measure` does."""

from __future__ import annotations

from pathlib import Path

from prestep.sim.commands._shared import talk
from prestep.validation.measure.controller import measure as run
from prestep.validation.measure.options import Options, split


def measure(
    output: Path,
    minutes: float,
    gpus: int | None,
    only: str,
    without: str,
    cases: Path | None,
    no_nvls: bool,
    rehearse: bool,
    size_limit: float | None,
    force: bool,
) -> None:
    limit = size_limit * 2**20 if size_limit else None
    options = Options(
        output,
        minutes,
        gpus,
        split(only),
        split(without),
        cases,
        not no_nvls,
        rehearse,
        force,
        limit,
    )
    run(options.checked(), talk)
