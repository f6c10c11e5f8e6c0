"""Sets of nodes with watts at the wall (`kind = "wall"` in set.toml): a host around GPUs that are busy, or wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from prestep.sim import files
from prestep.sim.analysis.energy import HELD, host_power
from prestep.sim.costs import load_gpu
from prestep.sim.costs.draw import wall
from prestep.sim.errors import InputError, Mistake
from prestep.sim.schema import Number, Switch, Table, Text
from prestep.validation.formats.records import is_positive, text_of
from prestep.validation.report.interface import Skip

BUSY, IDLE = "GPUs at their limit", "GPUs wait"
#: Key of set.toml with the limit on the mean error of a kind, and of a row with what was measured.
LIMITS = {BUSY: "busy", IDLE: "idle"}
MEASURED = {BUSY: "busy_w", IDLE: "idle_w"}
#: What a row must say.
ROW = Table(
    {"id": Text(), "gpu": Text(), "gpus": Number(1, whole=True), "liquid": Switch()},
    ("id", "gpu", "gpus", "liquid"),
)


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> FiguresReport:
    """Predicts the watts of the nodes of a set, or of other rows in the same format.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """

    def show(_: str, watts: float) -> str:
        return f"{watts:.0f} W"

    return report_on(name, rows, LIMITS, _of_file, show=show)


def _of_file(path: Path, _: list[Skip]) -> Iterator[Figure]:
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.strip():
            yield from _of_row(_checked(line, f"{path}:{number}"))


def _checked(line: str, where: str) -> Mapping[str, Any]:
    """A row with all that it must say."""
    try:
        row = files.json_of(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise InputError(Mistake(where, "", line[:60], "a JSON object"))
    known = {key: row[key] for key in ROW.keys if key in row}
    mistakes = list(ROW.mistakes(where, "", known))
    mistakes += [
        Mistake(where, key, repr(row.get(key)), "watts above 0, or null")
        for key in MEASURED.values()
        if not (row.get(key) is None or is_positive(row.get(key)))
    ]
    if mistakes:
        raise InputError(mistakes)
    return row


def _of_row(row: Mapping[str, Any]) -> Iterator[Figure]:
    """Both figures of a node; none where it was not measured."""
    for kind, watts in _predicted(row).items():
        measured = row.get(MEASURED[kind])
        if measured is not None:
            yield Figure(row["id"], kind, float(measured), watts)


def _predicted(row: Mapping[str, Any]) -> dict[str, float]:
    """Watts of a node whose GPUs draw what their limit lets them, and of one whose GPUs wait."""
    gpu = load_gpu(row["gpu"])
    if gpu.draw is None or gpu.power_limit is None:
        return dict.fromkeys(LIMITS, math.nan)
    constants = wall(liquid=row["liquid"])
    return {
        BUSY: host_power(HELD * gpu.power_limit, row["gpus"], constants),
        IDLE: host_power(gpu.draw.idle, row["gpus"], constants),
    }
