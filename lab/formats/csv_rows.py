"""Rows of published tables: as texts, and as steps that were measured."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake


@dataclass(frozen=True)
class MeasuredStep:
    """A row as a scenario with its time.

    Attributes
    ----------
    id, slice, group
        The row's name, the slice of the report that it belongs to, and the rows with which it is fitted to, or judged.
    tables
        Sections of the scenario.
    measured
        Seconds of the step.
    assumed
        What the row leaves open and somebody chose, in words.
    incomplete
        Why it is predicted but not judged.
    """

    id: str
    slice: str
    group: str
    tables: Mapping[str, Any]
    measured: float
    assumed: str = ""
    incomplete: str = ""


def csv_rows(path: Path, columns: Sequence[str], expected: str) -> list[dict[str, str]]:
    """Rows of a CSV file, as texts; `expected` says what kind of file it should be.

    Raises
    ------
    InputError
        If it cannot be read, has no rows, or lacks one of the columns.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [
                {str(key): value or "" for key, value in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(Mistake(str(path), "", str(error), expected)) from None
    missing = [name for name in columns if rows and name not in rows[0]]
    if not rows or missing:
        found = f"no column {', '.join(missing)}" if rows else "no rows"
        raise InputError(Mistake(str(path), "", found, f"columns {', '.join(columns)}"))
    return rows
