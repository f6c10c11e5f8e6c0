"""A user's own measurements: scenarios, recipes and recorded programs, each with the time that a step took, or what
`prestep measure` wrote.

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

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools import catalog
from prestep.sim.units import parse_duration
from prestep.validation.formats import records, rows, scenarios
from prestep.validation.formats.collective_reader import KINDS

#: The largest error of a row that states none.
LIMIT = 0.2
#: The group of jobs, of which a file says no kinds.
ALL = "all"
_COLUMNS = ("job", "measured")
_OWN = (*_COLUMNS, "name", "cluster", "limit", "scenario", "step_times")


@dataclass(frozen=True)
class Row:
    """A measured step, s: a job's file and what is changed in it, or the tables of a scenario.

    Attributes
    ----------
    group : str
        What it is reported with.
    memory : mapping
        Measured peaks by rank, bytes.
    error : str
        Why there is no measurement, or nothing that a scenario can say.
    """

    where: str
    name: str
    measured: float = math.nan
    limit: float = LIMIT
    job: Path | None = None
    overrides: tuple[str, ...] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)
    group: str = ALL
    memory: Mapping[int, float] = field(default_factory=dict)
    error: str = ""

    @property
    def scenario(self) -> Scenario:
        """What ran; raises InputError with every mistake."""
        if self.job is None:
            return parse_scenario(self.tables, self.where)
        return load_scenario(self.job, self.overrides)


def has_collectives(path: Path) -> bool:
    """Whether a file has the lines on collectives that `prestep measure` writes."""
    first = files.read_text(path).lstrip().partition("\n")[0]
    return first.startswith("{") and any(f'"kind": "{kind}"' in first for kind in KINDS)


def read(path: Path, cluster: str | None = None) -> list[Row]:
    """The rows of a file; raises InputError with every mistake in it."""
    listed: list[Row] = []

    def take(cells: Any, where: str) -> None:
        if not isinstance(cells, dict):
            raise InputError.of(where, "", repr(cells)[:60], "a JSON object")
        listed.append(_of_json(path, where, cells, cluster))

    text = files.read_text(path)
    if text.lstrip().startswith("{"):
        records.read_lines(text, str(path), take)
    else:
        _read_table(text, str(path), take)
    if not listed:
        raise InputError.of(str(path), "", "no rows", "a job and its time a line")
    return listed


def _of_json(
    path: Path, where: str, cells: Mapping[str, Any], cluster: str | None
) -> Row:
    """A job of the user's, or a training step of `prestep measure`."""
    if "step_s_by_rank" in cells or "case" in cells:
        return _measured(path, where, cells, cluster)
    return _job(path, where, cells, cluster)


def _measured(
    path: Path, where: str, cells: Mapping[str, Any], cluster: str | None
) -> Row:
    """A training step of `prestep measure`, as the scenario that it is."""
    there = {"cluster": dict([_place(path, cluster)])} if cluster else {}
    row = rows.row_of({**there, **cells}, where)
    if row.error:
        return Row(where, row.name, error=row.error)
    try:
        scenarios.scenario_of(row)
    except InputError as error:
        return Row(where, row.name, error=str(error))
    tables = {"cluster": scenarios.cluster_of(row), **scenarios.sections_of(row)}
    about = {"group": row.family, "memory": row.peak_memory}
    return Row(where, row.name, row.measured, tables=tables, **about)  # type: ignore[arg-type]


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


def _job(path: Path, where: str, cells: Mapping[str, Any], cluster: str | None) -> Row:
    """A row of a job."""
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
        overrides.append("cluster.{}={}".format(*_place(path, str(there))))
    if "name" not in cells and changes:
        name = " ".join([name, *overrides[: len(changes)]])
    return Row(where, name, measured, limit, job, tuple(overrides))


def _place(path: Path, cluster: str) -> tuple[str, str]:
    """The key of [cluster] and its value: a cluster's name, or its file beside the rows."""
    file = path.parent / cluster
    return ("file", str(file.absolute())) if file.is_file() else ("name", cluster)


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
