"""How much the measured steps of a row differ."""

from __future__ import annotations

import statistics

from prestep.validation.formats.rows import Row


def step_times(row: Row) -> list[float]:
    """Seconds of each step: the median over ranks."""
    by_step = zip(*row.steps.values(), strict=False)
    return [statistics.median(times) for times in by_step]


def spread_of(row: Row) -> float:
    """Largest less smallest step over the median."""
    steps = step_times(row)
    spread: float = (max(steps) - min(steps)) / statistics.median(steps)
    return spread
