"""Writes the table of `prestep.sim.record.measured_runs` from the validation sets and their reports:

    prestep validate h200 h200-unseen published --json > reports.json
    python -m lab.report.measured_runs reports.json

Without reports the predictions stay as they are; rows that are new have none.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from lab.formats import shared_jobs
from lab.formats.configurations import of_step
from lab.formats.published_setups import FOLDER
from lab.formats.shared_jobs import JobRow, paired
from lab.formats.step_times import spread_of
from lab.report.published import Case
from lab.sets.kinds import STEPS
from lab.sets.published import read, sort
from lab.sets.step_sets import MeasuredSet, load_set
from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.sim.record.expected_error import TABLE
from prestep.sim.record.identity import Kind, key_of, kind_of
from prestep.sim.record.measured_runs import MeasuredRun, measured_runs
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.validation.formats import scenarios
from prestep.validation.sets.sets import folder_of, set_names, set_table
from prestep.validation.sets.sets import kind_of as kind_of_set

CHANGES = "changes"


def rows() -> Iterator[MeasuredRun]:
    """The steps of all sets, without predictions."""
    for name in sorted([*set_names(STEPS), *set_names(CHANGES)]):
        yield from _steps(name)
    yield from _published()


def _steps(name: str) -> Iterator[MeasuredRun]:
    made, scenario_of = _loaded(name)
    fitted, limit = made.fitted, made.tolerances.noisy_spread
    for row in paired(made.rows):
        try:
            scenario = None if row.error else scenario_of(row)
        except InputError:
            continue
        if scenario is not None and (key := key_of(scenario)):
            note = "noisy" if spread_of(row) > limit else ""
            used = of_step(row) in fitted
            yield MeasuredRun(
                key,
                name,
                row.name,
                row.measured,
                math.nan,
                used,
                note,
                kind_of(scenario),
            )


def _loaded(name: str) -> tuple[MeasuredSet, Callable[[JobRow], Scenario]]:
    """A set of steps, or one of steps with a change, and how its rows become scenarios."""
    if kind_of_set(name) == STEPS:
        return load_set(name), scenarios.scenario_of
    table = set_table(name)
    own = replace(load_set(table["base"]), name=name, files=tuple(table["rows"]))
    limits = folder_of(name) / "tolerances.toml"
    return replace(own, limits=limits), shared_jobs.scenario_of


def _published() -> Iterator[MeasuredRun]:
    runs, _ = sort(read(FOLDER / "rows.csv"))
    for run in runs:
        scenario = parse_scenario(run.scenario, run.id)
        used = Case(run.id, run.slice, run.group, run.measured, math.nan).fitted
        kind = kind_of(scenario)
        yield MeasuredRun(
            key_of(scenario),
            "published",
            run.id,
            run.measured,
            math.nan,
            used,
            run.assumed,
            kind,
        )


def predictions(reports: Sequence[Path]) -> dict[tuple[str, str], float]:
    """(set, row) -> predicted seconds, of files of `prestep validate --json`."""
    times: dict[tuple[str, str], float] = {}
    for path in reports:
        saved = json.loads(path.read_text(encoding="utf-8"))
        for report in saved if isinstance(saved, list) else [saved]:
            cases = {
                (report["set"], case["id"]): case.get("predicted")
                for case in report["cases"]
            }
            times |= {
                key: float(time) for key, time in cases.items() if time is not None
            }
    return times


def text_of(
    cases: Sequence[MeasuredRun], predicted: Mapping[tuple[str, str], float]
) -> str:
    """The index as CSV."""
    out = io.StringIO()
    names = [field.name for field in fields(Kind)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["key", "set", "row", "measured", "predicted", "fitted", "note", *names]
    )
    for case in cases:
        time = predicted.get((case.set, case.row))
        text = "" if time is None else f"{time:.6g}"
        kind = [getattr(case.kind, name) for name in names]
        fitted = "yes" if case.fitted else "no"
        writer.writerow(
            [
                case.key,
                case.set,
                case.row,
                f"{case.measured:.6g}",
                text,
                fitted,
                case.note,
                *kind,
            ]
        )
    return out.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "reports",
        nargs="*",
        type=Path,
        help="files of `prestep validate SET... --json`",
    )
    options = parser.parse_args(arguments)
    kept = {
        (case.set, case.row): case.predicted
        for case in measured_runs()
        if math.isfinite(case.predicted)
    }
    files.write_text(
        TABLE, text_of(list(rows()), {**kept, **predictions(options.reports)})
    )


if __name__ == "__main__":
    main()
