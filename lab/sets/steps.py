"""Predicts every measured case by the ordinary path and compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from lab.formats.configurations import of_step
from lab.formats.step_times import spread_of
from lab.report.step_cases import Case, Prediction
from lab.report.steps import Report
from lab.sets.step_sets import load_set
from prestep.sim import progress
from prestep.sim.analysis import prediction
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.predict import predict as predicted
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools.workers import Workers
from prestep.topologies import load_cluster
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of

__all__ = ["Case", "Prediction", "Report", "predict_row", "validate_set"]

Predict = Callable[[Scenario], prediction.Prediction]
Given = TypeVar("Given", bound=Row)


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
    rows_of_set = [row if row.cluster else replace(row, cluster=where) for row in read]
    predictable, skipped = sort(rows_of_set)
    predictions = predict_all(predictable, jobs, partial(predict_row, predict=predict))
    fitted, limit = chosen.fitted, chosen.tolerances.noisy_spread
    cases = tuple(
        Case(row, made, of_step(row) in fitted, spread_of(row) > limit)
        for row, made in zip(predictable, predictions, strict=True)
    )
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


def sort(
    rows: Sequence[Given], scenario_of: Callable[[Given], Scenario] = scenario_of
) -> tuple[list[Given], tuple[Given, ...]]:
    """Rows to predict, and rows that hold no measurement or ran what a scenario cannot say, with the reason."""
    predictable, skipped = [], []
    scenarios: set[str] = set()  # questions that are known to have one
    for row in rows:
        question, reason = question_of(row), row.error
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
    """The prediction of a row."""
    return prediction_of(lambda: (predict or predicted)(scenario_of(row)))


def prediction_of(step_of: Callable[[], prediction.Prediction]) -> Prediction:
    """A step as it is predicted; whatever stops it becomes its error, so that one row does not hide the others."""
    try:
        step = step_of()
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


def question_of(row: Row) -> str:
    """What of a row its prediction rests on: all but what was measured."""
    parts = [row.case, row.world, row.label, dict(row.env), dict(row.cluster)]
    return json.dumps(parts, sort_keys=True, default=str)


def predict_all(
    rows: Sequence[Given],
    jobs: int,
    work: Callable[[Given], Prediction],
    question_of: Callable[[Given], str] = question_of,
) -> list[Prediction]:
    """The prediction of every row: a step that was measured more than once is predicted once."""
    questions = list(map(question_of, rows))
    distinct: dict[str, Given] = {}
    for question, row in zip(questions, rows, strict=True):
        distinct.setdefault(question, row)
    count = len(distinct)
    if jobs == 1 or count < 2:
        made = list(map(work, progress.track([*distinct.values()], "rows")))
    else:
        with Workers(jobs) as pool:
            pending = pool.map(work, distinct.values(), chunksize=4)
            made = list(progress.track(pending, "rows", count))
    predictions = dict(zip(distinct, made, strict=True))
    return [predictions[question] for question in questions]
