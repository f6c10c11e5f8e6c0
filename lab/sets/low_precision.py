"""Steps in 16, 8 and 4 bits that others printed (``kind = "low_precision"``): rows to scenarios, and comparison."""

from __future__ import annotations

from pathlib import Path

from lab.formats.low_precision_rows import id_of, read, said
from lab.report.published import Case, PublishedReport
from lab.sets.published import Run
from lab.sets.said_rows import predicted, runs_of
from prestep.validation.sets.sets import asked, folder_of

NEVER = 2**33  # above any checksum of a group: none is fitted to


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row that can be said as a scenario; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    table, files, _ = asked(name, rows)
    read_rows = [row for file in files for row in read(file)]
    runs, skips = runs_of(read_rows, said, id_of)
    cases = [_case(run, time, why) for run, time, why in predicted(runs, jobs, skips)]
    limits, title = folder_of(name) / "limits.toml", table["title"]
    return PublishedReport(
        name, title, tuple(cases), tuple(skips), rows is None, limits=limits
    )


def _case(run: Run, time: float, why: str) -> Case:
    """A row beside its prediction: nothing is fitted to any."""
    about = run.id, run.slice, run.id, run.measured
    return Case(*about, time, why, notes=run.notes, part=NEVER)
