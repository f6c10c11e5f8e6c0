"""Sets of saves during training (`kind = "checkpoint"` in set.toml): stall, and steps beside an asynchronous save.

The stall is the step with the save less the median of ordinary steps; beside is the mean of the steps from the next one
to the one after which the save was complete. Both are medians over ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.formats.step_times import step_times
from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from prestep.sim import files, progress
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import predict
from prestep.sim.storage.sections import Checkpoint
from prestep.sim.storage.systems import constants
from prestep.validation.formats.records import text_of, whole
from prestep.validation.formats.rows import read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.validation.report.interface import Skip
from prestep.validation.sets.sets import folder_of, set_table

STALL, BESIDE = "save stall", "steps beside a save"
#: Key of set.toml with the limit on the worst error of a kind.
LIMITS = {STALL: "stall", BESIDE: "beside"}
MODES = {"torch_rank0": "rank0", "dcp": "sharded", "dcp_async": "async"}
AT = 3  # step after which the harness saves, where the case does not say


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> FiguresReport:
    """Predicts the saves of the set's rows, or of others in the same format.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    report = report_on(name, rows, LIMITS, _of_file, worst=True)
    if rows is not None:
        return report
    path = folder_of(name) / set_table(name)["disks"]
    return replace(report, calibration=_calibration(path))


def _of_file(path: Path, skips: list[Skip]) -> Iterator[Figure]:
    pairs = list(zip(read_rows(path), _records(path), strict=True))
    for row, record in progress.track(pairs, "rows"):
        if row.error or "ckpt" not in row.case:
            why = row.error or "no checkpoint in it (case.ckpt)"
            skips.append(Skip(row.name, row.where, why))
        else:
            yield from _cases(row, record)


def _records(path: Path) -> list[dict[str, Any]]:
    return [files.json_of(line) for line in text_of(path).splitlines() if line.strip()]


def _cases(row: Any, record: Mapping[str, Any]) -> list[Figure]:
    try:
        measured = _measured(row, record)
    except InputError as error:
        return [Figure(row.name, STALL, float("nan"), float("nan"), str(error))]
    try:
        made = _predict(row)
    except PrestepError as error:
        return [
            Figure(row.name, kind, value, float("nan"), str(error))
            for kind, value in measured.items()
        ]
    predicted = {STALL: made["save_stall"], BESIDE: made["step_time_beside"]}
    return [
        Figure(row.name, kind, value, predicted[kind])
        for kind, value in measured.items()
    ]


def _measured(row: Any, record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of what a row measured."""
    save, steps = row.case["ckpt"], step_times(row)
    if not isinstance(save, dict):
        found, expected = repr(save)[:60], "a table of what was saved"
        raise InputError(Mistake(row.where, "case.ckpt", found, expected))
    at = whole({"at": AT, **save}, "at", row.where, low=0)
    done = _written(record, at, row.where)
    ordinary = steps[:at] + steps[max(done, at + 1) + 1 :]
    if at >= len(steps) or not ordinary:
        found, expected = f"{len(steps)} steps", f"more than {at + 1}"
        raise InputError(Mistake(row.where, "step_s_by_rank", found, expected))
    times = {STALL: steps[at] - statistics.median(ordinary)}
    if save.get("kind") == "dcp_async" and done > at:
        times[BESIDE] = statistics.fmean(steps[at + 1 : done + 1])
    return times


def _written(record: Mapping[str, Any], at: int, where: str) -> int:
    """The step after which the save of step `at` was complete on all ranks."""
    key = "checkpoint_by_rank"
    marks = record.get(key) or {}
    ranks = list(marks.values()) if isinstance(marks, dict) else [marks]
    if not all(isinstance(mark, dict) for mark in ranks):
        found, expected = repr(marks)[:60], "a table for each rank"
        raise InputError(Mistake(where, key, found, expected))
    done = "async_done_step"
    return max((whole({done: at, **m}, done, where, low=0) for m in ranks), default=at)


def _predict(row: Any) -> dict[str, Any]:
    """What prestep says of the save of a row."""
    kind = row.case["ckpt"].get("kind")
    if kind not in MODES:
        expected = " or ".join(MODES)
        raise InputError(Mistake(row.where, "case.ckpt.kind", repr(kind), expected))
    case = {key: value for key, value in row.case.items() if key != "ckpt"}
    scenario = scenario_of(replace(row, case=case))
    # The harness saves the model alone.
    save = Checkpoint(mode=MODES[kind], content="model")  # type: ignore[arg-type]
    result = predict(replace(scenario, extensions={"checkpoint": save}))
    if "checkpoint" not in result.effects:
        raise InputError(Mistake(row.where, "case.ckpt", "no prediction", "a save"))
    return dict(result.effects["checkpoint"])


def _calibration(path: Path) -> tuple[Figure, ...]:
    """What the constants make of the rows that they were taken from."""
    table = constants()
    rates = {
        "d2h": 1 / (1 / table["copy"] + 1 / table["fresh"]),
        "save": table["serialise"],
        "sync": table["writeback"],
        "load_warm": table["load"],
    }
    return tuple(
        Figure(f"{row['bytes'] >> 20} MiB", kind, row[f"{kind}_s"], row["bytes"] / rate)
        for row in _records(path)
        for kind, rate in rates.items()
    )
