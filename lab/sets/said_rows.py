"""Rows of a table of its own columns, said as scenarios and predicted: what sets of such tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lab.formats.said import Said
from lab.sets.published import Refusal, Run, predict_all
from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario

Row = Mapping[str, str]
Skips = list[tuple[str, str]]


def runs_of(
    rows: Iterable[Row], said: Callable[[Row], Said], id_of: Callable[[Row], str]
) -> tuple[list[Run], Skips]:
    """Rows that are scenarios, and (row, reason) of those that are not."""
    runs: list[Run] = []
    skips: Skips = []
    for row in rows:
        try:
            runs.append(_run(row, said(row)))
        except InputError as error:
            skips.append((id_of(row), "; ".join(map(str, error.mistakes))))
    return runs, skips


def predicted(
    runs: Sequence[Run], jobs: int, skips: Skips
) -> list[tuple[Run, float, str]]:
    """Runs with seconds of their steps, or why there are none; those that are not simulated are added to `skips`."""
    made = []
    for run, (time, why) in zip(runs, predict_all(runs, jobs), strict=True):
        if isinstance(why, Refusal):
            skips.append((run.id, why))
        else:
            made.append((run, time, why))
    return made


def _run(row: Row, one: Said) -> Run:
    """A row as a run.

    Raises
    ------
    InputError
        If its scenario has mistakes.
    """
    parse_scenario(dict(one.tables), one.id)
    return Run(one.id, one.part, row, one.tables, one.measured, "", one.assumed)
