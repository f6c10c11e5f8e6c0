"""Sets of exchanges of experts' tokens (`kind = "exchanges"` in set.toml): times, and ratios of two clusters.

A row has the options of `prestep collective --op dispatch`; `us` is what was measured. Two rows that differ in the
cluster alone give a ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from lab.formats.csv_rows import csv_rows
from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from prestep.sim.errors import PrestepError
from prestep.sim.exchanges.report import SHAPE, collective
from prestep.validation.report.interface import Skip

TIME, RATIO, NORMAL = "time", "ratio of two clusters", "DeepEP's normal kernels"
LIMITS = {TIME: "times", RATIO: "ratios"}
#: What the rows of a ratio have in common.
SAME = ("hosts", "op", *SHAPE)
COLUMNS = ("id", "cluster", *SAME, "us")


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> FiguresReport:
    """Predicts the exchanges of a set, or of another file with the same columns.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """

    def show(kind: str, value: float) -> str:
        return f"{value:.3f}" if kind == RATIO else f"{value * 1e6:.1f} us"

    return report_on(name, rows, LIMITS, _figures, show=show)


def _figures(path: Path, _: list[Skip]) -> Iterator[Figure]:
    """Times of a file's rows, and ratios of those that differ in the cluster alone."""
    rows = csv_rows(path, COLUMNS, "a column of an exchange of tokens")
    times = {row["id"]: _time(row) for row in rows}
    yield from times.values()
    for one, other in combinations(rows, 2):
        alike = all(one[key] == other[key] for key in SAME)
        if not alike or one["cluster"] == other["cluster"] or int(one["hosts"]) == 1:
            continue
        a, b = times[one["id"]], times[other["id"]]
        measured, predicted = a.measured / b.measured, a.predicted / b.predicted
        yield Figure(f"{a.name} / {b.name}", RATIO, measured, predicted)


def _time(row: Mapping[str, str]) -> Figure:
    """What an exchange takes, measured and predicted."""
    kind = NORMAL if row["library"] == "deepep" else TIME
    measured = float(row["us"]) * 1e-6
    shape = {key: _value(row[key]) for key in SHAPE if row[key]}
    try:
        made = collective(
            row["cluster"], row["op"], shape, hosts=int(row["hosts"])
        ).to_json()
    except PrestepError as error:
        return Figure(row["id"], kind, measured, float("nan"), str(error))
    return Figure(row["id"], kind, measured, made[0]["time"])


def _value(text: str) -> str | int:
    return int(text) if text.isdecimal() else text
