"""Measurements that others send: what a row must have, whether it can be true, and its prediction.

A file has a JSON object a line: a scenario, the times of single steps, and where they come from. `checked` reads it
strictly and predicts every row; `text` is the file for a pull request, and reading that gives the same file again.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from prestep.sim import __version__, files, schema
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError, Mistake
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.predict import predict
from prestep.sim.schema import Anything, Items, Named, Number, Table, Text
from prestep.sim.spec.load import parse_scenario
from prestep.validation.formats import records

#: Licences under which a row can lie beside the others.
LICENCES = ("Apache-2.0", "CC0-1.0", "CC-BY-4.0")
KEYS: dict[str, schema.Schema] = {
    "scenario": Anything(),
    "step_times": Items(Number(above=True)),
    "measured_by": Text(),
    "date": Text(),
    "hardware": Text(),
    "software": Named(Text()),
    "how": Text(),
    "licence": Text(LICENCES),
    "checked": Anything(),  # what an earlier check wrote
}
NEEDED = tuple(key for key in KEYS if key != "checked")
#: Steps that a median needs, and how far their quartiles may lie apart (of the median) before it means little.
FEWEST, UNSTEADY = 5, 0.1
#: Measured over predicted from where on another unit, job or machine is likelier than a bad prediction.
FAR = 3.0


_DECLARED = schemas_beside(
    __file__,
    good=lambda rows: not any(one.doubts for one in rows),
    all=lambda rows: rows,
    error=lambda row: row.result.step_time / row.measured - 1,
    low=lambda row: row.interval[0],
    high=lambda row: row.interval[1],
)
SCHEMA = _DECLARED["schema"]


@dataclass(frozen=True)
class Checked:
    """A row that can be read, and its prediction. `doubts`: why it can hardly be true, in words."""

    row: Mapping[str, Any]
    where: str
    measured: float
    result: Prediction

    @property
    def id(self) -> str:
        """The same for the same measurement, whoever predicts it."""
        fields = {key: self.row[key] for key in NEEDED}
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(_doubts(self.row["step_times"], self.measured, self.result))

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Between which times nine in ten steps lie, s; None where nobody knows."""
        interval = self.result.uncertainty
        return (interval.low, interval.high) if interval else (None, None)


def checked(path: Path) -> list[Checked]:
    """The rows of a file, each with its prediction.

    Raises
    ------
    InputError
        With every mistake of every row.
    """
    rows: list[Checked] = []
    # By scenario: what was measured twice is predicted once.
    predictions: dict[str, Prediction] = {}

    def take(row: Any, where: str) -> None:
        wrong = [*Table(KEYS, NEEDED).mistakes(where, "", row)]
        if wrong := wrong or [*_wrong(row, where)]:
            raise InputError(wrong)
        rows.append(_predicted(row, where, predictions))

    records.read_lines(files.read_text(path), str(path), take)
    if not rows:
        raise InputError.of(str(path), "", "no rows", "a JSON object a line")
    return rows


def text(rows: Sequence[Checked]) -> str:
    """The file for a pull request: what was sent, and under `checked` this version's prediction."""
    lines = []
    for row in rows:
        report = _DECLARED["row"].row(row)
        checked = {key: report[key] for key in ("id", "measured", "predicted")}
        checked["prestep"] = __version__
        fields = {key: row.row[key] for key in NEEDED}
        lines.append(json.dumps({**fields, "checked": checked}))
    return "\n".join(lines) + "\n"


def _wrong(row: Mapping[str, Any], where: str) -> Iterator[Mistake]:
    """Mistakes that a schema cannot see."""
    try:
        date.fromisoformat(row["date"])
    except ValueError:
        yield Mistake(where, "date", f'"{row["date"]}"', "a day such as 2026-03-31")
    if len(row["step_times"]) < FEWEST:
        found = f"{len(row['step_times'])} steps"
        expected = f"the times of at least {FEWEST} single steps"
        yield Mistake(where, "step_times", found, expected)
    tables = row["scenario"]
    if not isinstance(tables, Mapping):
        expected = "the tables of a scenario"
        yield Mistake(where, "scenario", repr(tables)[:60], expected)
        return
    for section, table in tables.items():
        if isinstance(table, Mapping) and "file" in table:
            hint = "a cluster or model that prestep does not have is a pull request of its own"
            key, found = f"scenario.{section}.file", repr(table["file"])[:60]
            yield Mistake(where, key, found, "a bundled name", hint)


def _predicted(
    row: Mapping[str, Any], where: str, predictions: dict[str, Prediction]
) -> Checked:
    key = json.dumps(row["scenario"], sort_keys=True)
    scenario = parse_scenario(dict(row["scenario"]), where)
    if scenario.jobs:
        raise InputError.of(where, "scenario.jobs", "several jobs", "one job")
    if key not in predictions:
        predictions[key] = predict(scenario)
    return Checked(row, where, statistics.median(row["step_times"]), predictions[key])


def _doubts(
    times: Sequence[float], measured: float, result: Prediction
) -> Iterator[str]:
    """Why a measurement can hardly be what it says."""
    low, _, high = statistics.quantiles(times, n=4)
    if high - low > UNSTEADY * measured:
        yield f"its steps differ: half of them lie within {(high - low) / measured:.0%} of the median"
    ratio = measured / result.step_time
    if result.mfu / ratio > 1:
        yield f"{result.mfu / ratio:.0%} of the datasheet's peak: no GPU is so fast"
    if not 1 / FAR <= ratio <= FAR:
        yield f"{ratio:.3g} times the predicted {result.step_time:.4g} s: seconds, and of this job?"
    verdict = result.out_of_memory
    if verdict is not None and not verdict.fits:
        yield "it should not fit into memory: is a key missing (recompute, sharding)?"
