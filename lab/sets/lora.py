"""Fine-tuning with adapters: rows of MLPerf's Llama-2-70B LoRA results, predicted as published steps are."""

from __future__ import annotations

from pathlib import Path

from lab.formats.csv_rows import csv_rows
from lab.formats.lora_rows import NEEDED, published
from lab.report.published import PublishedReport
from lab.sets.published import report_on
from prestep.validation.sets.sets import folder_of


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row whose layout and step time are known; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    path = Path(rows) if rows else folder_of(name) / "rows.csv"
    told, left_out = published(csv_rows(path, NEEDED, "a CSV file of LoRA results"))
    return report_on(name, told, rows is None, jobs, left_out)
