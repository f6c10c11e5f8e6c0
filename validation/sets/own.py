"""A user's own measured steps: scenarios, recipes and recorded programs, each with the time that a step took.

A CSV file has a column `job` (a file beside it, or a bundled scenario) and a column `measured` (seconds, or a time with
its unit). It may have `name`, `cluster` and `limit` (the largest error, 15%), and keys that `--set` takes, such as
`training.micro_batch`. JSON lines have the same keys, or `scenario` and `step_times`, as `prestep submit` takes them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prestep.sim import files, progress
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools import catalog
from prestep.sim.tools.workers import Workers
from prestep.sim.units import format_duration, parse_duration
from prestep.validation.formats import records
from prestep.validation.report.comparison import Comparison, finite
from prestep.validation.report.gate import Check, prediction_checks
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of

NAME = "own"
#: The largest error of a row that states none.
LIMIT = 0.2
_COLUMNS = ("job", "measured")
_OWN = (*_COLUMNS, "name", "cluster", "limit", "scenario", "step_times")


@dataclass(frozen=True)
class Row:
    """A measured step, s: a job's file and what is changed in it, or the tables of a scenario."""

    where: str
    name: str
    measured: float
    limit: float
    job: Path | None = None
    overrides: tuple[str, ...] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scenario(self) -> Scenario:
        """What ran; raises InputError with every mistake."""
        if self.job is None:
            return parse_scenario(self.tables, self.where)
        return load_scenario(self.job, self.overrides)


@dataclass(frozen=True)
class Case:
    """A row and its prediction, s; nan with the reason (`error`) where there is none."""

    row: Row
    predicted: float = math.nan
    interval: tuple[float, float] | None = None
    error: str = ""

    @property
    def signed_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.row.measured - 1

    def to_json(self) -> dict[str, Any]:
        predicted, signed = finite(self.predicted, self.signed_error)
        return {
            "id": self.row.name,
            "where": self.row.where,
            "measured": self.row.measured,
            "predicted": predicted,
            "signed_error": signed,
            "limit": self.row.limit,
            "interval": self.interval,
            "error": self.error,
        }


@dataclass(frozen=True)
class OwnReport(Comparison):
    """The rows of a file beside their predictions; each is held to its own limit."""

    cases: tuple[Case, ...]
    name: str = NAME
    title: str = "Your measured steps"
    unit: str = "steps"
    skips: tuple[Skip, ...] = ()

    @property
    def groups(self) -> dict[str, Errors]:
        good = [case for case in self.cases if not case.error]
        return {"all": errors_of([(one.row.name, one.signed_error) for one in good])}

    @property
    def checks(self) -> tuple[Check, ...]:
        wrong = [case.row.name for case in self.cases if case.error]
        judged = [case for case in self.cases if not case.error]
        return (
            *prediction_checks(len(self.cases), wrong, 0),
            *(
                Check(f"error of {one.row.name}", abs(one.signed_error), one.row.limit)
                for one in judged
            ),
        )

    def figures(self) -> dict[str, Any]:
        return {"groups": {name: one.to_json() for name, one in self.groups.items()}}

    @property
    def case_tables(self) -> tuple[Table, ...]:
        head = ("job", "measured", "predicted", "error", "limit", "")
        return (Table(self.title, head, [_cells(case) for case in self.cases]),)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(
            Point(
                one.row.name,
                "all",
                one.row.measured,
                one.predicted,
                fitted=False,
                error=one.error,
                interval=one.interval,
            )
            for one in self.cases
        )


def _cells(case: Case) -> list[str]:
    row, measured = case.row, format_duration(case.row.measured)
    if case.error:
        return [row.name, measured, "-", "-", f"{row.limit:.0%}", case.error]
    error = f"{case.signed_error:+.1%}"
    return [
        row.name,
        measured,
        format_duration(case.predicted),
        error,
        f"{row.limit:.0%}",
        "" if abs(case.signed_error) <= row.limit else "past its limit",
    ]


def is_own(path: Path) -> bool:
    """Whether rows are of this format: a table of jobs, or JSON lines that name a job or a scenario.

    Examples
    --------
    >>> is_own(Path("nowhere.csv"))
    False
    """
    if not path.is_file():
        return False
    first = files.read_text(path).lstrip().partition("\n")[0]
    if first.startswith("{"):
        return '"job"' in first or '"scenario"' in first
    return _is_head(first.strip().split(",")) or _is_plain(first.strip().split(","))


def validate_own(path: Path, jobs: int = 1, cluster: str | None = None) -> OwnReport:
    """Predicts every row, and compares.

    Raises
    ------
    InputError
        With every mistake of the file; a job that is refused is a row without a prediction.
    """
    rows = read(path, cluster)
    if jobs == 1 or len(rows) < 2:
        made = [*map(_case, progress.track(rows, "rows"))]
    else:
        with Workers(min(jobs, len(rows))) as pool:
            made = [*progress.track(pool.map(_case, rows), "rows", len(rows))]
    return OwnReport(tuple(made))


def _case(row: Row) -> Case:
    try:
        step = predict(row.scenario)
    except PrestepError as error:
        return Case(row, error=str(error))
    interval = step.uncertainty
    between = None if interval is None else (interval.low, interval.high)
    return Case(row, step.step_time, between)


def read(path: Path, cluster: str | None = None) -> list[Row]:
    """The rows of a file; raises InputError with every mistake in it."""
    rows: list[Row] = []

    def take(cells: Any, where: str) -> None:
        if not isinstance(cells, dict):
            raise InputError.of(where, "", repr(cells)[:60], "a JSON object")
        rows.append(_row(path, where, cells, cluster))

    text = files.read_text(path)
    if text.lstrip().startswith("{"):
        records.read_lines(text, str(path), take)
    else:
        _read_table(text, str(path), take)
    if not rows:
        raise InputError.of(str(path), "", "no rows", "a job and its time a line")
    return rows


def _read_table(text: str, name: str, take: Callable[[Any, str], None]) -> None:
    """Hands every row of a table to `take` by its columns, with its place; cells that are empty are left out.

    Raises
    ------
    InputError
        With the mistakes of all rows.
    """
    table = csv.reader(io.StringIO(text))
    head: Sequence[str] = _COLUMNS
    mistakes: list[Mistake] = []
    for row in table:
        cells = [cell.strip() for cell in row]
        where = f"{name}:{table.line_num}"
        if table.line_num == 1 and _is_head(cells):
            head = cells
        elif table.line_num == 1 and not _is_plain(cells):
            found = f"the columns {', '.join(cells)}"[:60]
            expected = "job and measured, and keys of --set beside them"
            raise InputError.of(where, "", found, expected)
        elif len(cells) > len(head) and any(cells):
            expected = f"{len(head)}: {', '.join(head)}"
            mistakes.append(Mistake(where, "", f"{len(cells)} cells", expected))
        elif any(cells):
            pairs = zip(head, cells, strict=False)
            with InputError.collected(mistakes):
                take({key: cell for key, cell in pairs if cell}, where)
    InputError.check(mistakes)


def _is_head(cells: Sequence[str]) -> bool:
    return {*_COLUMNS} <= {cell.strip() for cell in cells}


def _is_plain(cells: Sequence[str]) -> bool:
    """Whether this is a row of two columns without a head: a job, and its time."""
    if len(cells) != len(_COLUMNS):
        return False
    try:
        return _seconds("", cells[1].strip()) > 0
    except InputError:
        return False


def _seconds(where: str, stated: object) -> float:
    """A time: a number is seconds."""
    try:
        seconds = float(stated)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = parse_duration(stated, where, "measured")
    if not 0 < seconds < math.inf:
        expected = 'the time of a step above 0, such as 0.812 or "812 ms"'
        raise InputError.of(where, "measured", str(stated), expected)
    return seconds


def _row(path: Path, where: str, cells: Mapping[str, Any], cluster: str | None) -> Row:
    if "step_times" in cells:
        times = cells["step_times"]
        right = isinstance(times, list) and times
        measured = _seconds(where, statistics.median(times) if right else times)
    else:
        measured = _seconds(where, cells.get("measured"))
    limit = _limit(where, cells.get("limit"))
    name = str(cells.get("name") or cells.get("job") or where.rpartition("/")[2])
    if "scenario" in cells:
        return Row(where, name, measured, limit, tables=cells["scenario"])
    if not isinstance(cells.get("job"), str):
        expected = "a scenario, a recipe or a recorded program beside this file"
        raise InputError.of(where, "job", json.dumps(cells.get("job")), expected)
    beside = path.parent / cells["job"]
    job = beside if beside.exists() else catalog.find_scenario(cells["job"])
    there = cells.get("cluster") or cluster
    changes = {key: value for key, value in cells.items() if key not in _OWN}
    overrides = [f"{key}={value}" for key, value in changes.items()]
    if there is not None:
        overrides.append(_place(path, str(there)))
    if "name" not in cells and changes:
        name = " ".join([name, *overrides[: len(changes)]])
    return Row(where, name, measured, limit, job, tuple(overrides))


def _place(path: Path, cluster: str) -> str:
    """The override of a cluster's name, or of its file beside the rows."""
    file = path.parent / cluster
    return (
        f"cluster.file={file.absolute()}"
        if file.is_file()
        else f"cluster.name={cluster}"
    )


def _limit(where: str, stated: object) -> float:
    text = str(LIMIT if stated is None else stated).strip()
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    if not 0 < limit < math.inf:
        expected = 'the largest error, such as 0.15 or "15%"'
        raise InputError.of(where, "limit", text, expected)
    return limit
