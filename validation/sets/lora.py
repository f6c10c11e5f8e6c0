"""Fine-tuning with adapters: rows of MLPerf's Llama-2-70B LoRA results, predicted as published steps are."""

from __future__ import annotations

import csv
from pathlib import Path

from sim.errors import InputError, Mistake
from validation.formats.lora_rows import published
from validation.report.published import PublishedReport
from validation.sets.published import report_on
from validation.sets.sets import CASES


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row whose layout and step time are known; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    path = Path(rows) if rows else CASES / name / "rows.csv"
    told, left_out = published(_read(path), path)
    return report_on(name, told, rows is None, jobs, left_out)


def _read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {str(key): value or "" for key, value in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, csv.Error) as error:
        expected = "a CSV file of LoRA results"
        raise InputError(Mistake(str(path), "", str(error), expected)) from None
