"""Predicts every measured case by the ordinary path and compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.analysis import prediction
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.predict import predict as predicted
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import shared_cluster
from prestep.sim.tools.workers import Workers
from prestep.topologies import load_cluster
from prestep.validation.formats.harness import emulated_cluster
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.validation.report.step_cases import Base, Case, Prediction
from prestep.validation.report.steps import Report
from prestep.validation.sets.ratios import base_of, by_step
from prestep.validation.sets.sets import MeasuredSet, load_set

__all__ = ["Case", "Prediction", "Report", "predict_row", "validate_set"]

Predict = Callable[[Scenario], prediction.Prediction]


def validate_set(
    name: str,
    rows: str | Path | None = None,
    jobs: int = 1,
    predict: Predict | None = None,
    cluster: str | None = None,
) -> Report:
    """Predicts the rows of a set, or other rows under its tolerances, and compares.

    Parameters
    ----------
    name
        A name of `prestep.validation.sets.sets.set_names()`.
    rows
        A file of other rows in the same format.
    jobs
        Worker processes.
    predict
        Stands in for `prestep.sim.predict.predict`; with `jobs` > 1 it must be importable.
    cluster
        Name or file of the cluster on which rows were measured that do not say it; default: what set.toml says.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    chosen = load_set(name)
    where = chosen.cluster if cluster is None else _named(name, cluster, rows)
    read = chosen.rows if rows is None else read_rows(rows)
    measured = [_measured_on(where, row) for row in read]
    predictable, skipped = _sort(measured)
    bases: list[Row | None] = [None] * len(predictable)
    if chosen.ratios:
        bases = _bases(predictable, [*measured, *chosen.bases])
    every = [*predictable, *(row for row in bases if row is not None)]
    predictions = _predict_all(every, jobs, predict)
    cases = _cases(predictable, bases, predictions, chosen)
    title = chosen.title if rows is None else ""
    return Report(name, cases, chosen.tolerances, skipped, rows is None, title)


def _named(name: str, cluster: str, rows: str | Path | None) -> dict[str, str]:
    """[cluster] of a cluster's name, or of its file: from here, whatever folder the rows lie in."""
    if rows is None:
        expected = (
            "nothing, or --rows too: the set's own rows say where they were measured"
        )
        raise InputError.of(name, "--cluster", cluster, expected)
    load_cluster(cluster)  # a wrong one is one mistake, not one of every row
    if cluster.endswith(".toml"):
        return {"file": str(Path(cluster).absolute())}
    return {"name": cluster}


def _measured_on(where: Mapping[str, Any], row: Row) -> Row:
    """A row with the cluster that it does not name itself; labels of emulated ones name it."""
    named = bool(row.cluster) or emulated_cluster(row) is not None
    return row if named else replace(row, cluster=where)


def _cases(
    rows: Sequence[Row],
    bases: Sequence[Row | None],
    predictions: Mapping[str, Prediction],
    chosen: MeasuredSet,
) -> tuple[Case, ...]:
    """Rows beside their predictions, and beside the same of the row that each is a ratio to."""
    fitted, limit = chosen.fitted, chosen.tolerances.noisy_spread

    def about(row: Row) -> tuple[Row, Prediction]:
        return row, predictions[_question(row)]

    return tuple(
        Case(
            *about(row),
            fitted=row.configuration in fitted,
            noisy=row.spread > limit,
            base=None if base is None else Base(*about(base), base.spread > limit),
        )
        for row, base in zip(rows, bases, strict=True)
    )


def _bases(rows: Sequence[Row], among: Sequence[Row]) -> list[Row | None]:
    """The base of every row that has one which can be predicted; rows of its own file come first."""
    by_file: dict[str, list[Row]] = {}
    for row in among:
        by_file.setdefault(row.where.rpartition(":")[0], []).append(row)
    own = {file: by_step(mine) for file, mine in by_file.items()}
    every = by_step(among)
    bases = [
        base_of(row, own[row.where.rpartition(":")[0]]) or base_of(row, every)
        for row in rows
    ]
    predictable, _ = _sort([row for row in bases if row is not None])
    questions = set(map(_question, predictable))
    return [
        row if row is not None and _question(row) in questions else None
        for row in bases
    ]


def _sort(rows: Sequence[Row]) -> tuple[list[Row], tuple[Row, ...]]:
    """Rows to predict, and rows that hold no measurement or ran what a scenario cannot say, with the reason."""
    predictable, skipped = [], []
    scenarios: set[str] = set()  # questions that are known to have one
    for row in rows:
        question, reason = _question(row), row.error
        if not reason and question not in scenarios:
            try:
                scenario_of(row)
            except InputError as error:
                reason = str(error)
        if reason:
            skipped.append(replace(row, error=reason))
        else:
            scenarios.add(question)
            predictable.append(row)
    return predictable, tuple(skipped)


def predict_row(row: Row, predict: Predict | None = None) -> Prediction:
    """The prediction of a row; whatever stops it becomes its error, so that one row does not hide the others."""
    try:
        scenario = scenario_of(row)
        step = _of_jobs(scenario) if scenario.jobs else (predict or predicted)(scenario)
    except PrestepError as error:
        return Prediction(error=str(error))
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return Prediction(error=f"{type(error).__name__}: {error}")
    memory = {rank: memory.total for rank, memory in step.peak_memory.items()}
    interval = step.uncertainty
    return Prediction(
        step.step_time,
        memory,
        interval=None if interval is None else (interval.low, interval.high),
    )


def _of_jobs(scenario: Scenario) -> prediction.Prediction:
    """The result of the row's own job, the first, with those beside it at work."""
    return shared_cluster.predict(scenario).results[scenario.jobs[0].name]


def _question(row: Row) -> str:
    """What of a row its prediction rests on: all but what was measured. Jobs that ran together stand alone."""
    run = row.where if row.beside else ""
    parts = [row.case, row.world, row.label, dict(row.env), dict(row.cluster), run]
    return json.dumps(parts, sort_keys=True, default=str)


def _predict_all(
    rows: Sequence[Row], jobs: int, predict: Predict | None
) -> dict[str, Prediction]:
    """Predictions by question: a step that was measured more than once is predicted once."""
    distinct: dict[str, Row] = {}
    for row in rows:
        distinct.setdefault(_question(row), row)
    work = partial(predict_row, predict=predict)
    count = len(distinct)
    if jobs == 1 or count < 2:
        made = list(map(work, progress.track([*distinct.values()], "rows")))
    else:
        with Workers(jobs) as pool:
            pending = pool.map(work, distinct.values(), chunksize=4)
            made = list(progress.track(pending, "rows", count))
    return dict(zip(distinct, made, strict=True))
