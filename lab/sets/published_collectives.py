"""Sets of published nccl-tests measurements (`kind = "published_collectives"` in set.toml)."""

from __future__ import annotations

from pathlib import Path

from lab.formats.published_collectives import read_csv
from lab.report.collectives import CollectiveReport
from lab.sets import collectives


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> CollectiveReport:
    """Predicts the rows of a set, or those of another CSV file under its limits, and compares.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    return collectives.validate_set(name, rows, jobs, lambda path: (read_csv(path), []))
