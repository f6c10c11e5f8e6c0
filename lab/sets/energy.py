"""Sets of steps with watts (`kind = "energy"` in set.toml): mean power of a GPU, joules of a step, clock of its SMs.

Rows are those of the harness, with `watts_mean` (W), `window_step_s` (s of a step while the watts were read) and, where
it was read, `sm_clock_mhz`. Power is predicted twice: of the predicted step, and of the same kernels in the time that
the step took, which tells errors of watts from those of time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from lab.sets.programs import cluster_of
from prestep.sim import files, progress
from prestep.sim.analysis.energy import Share, drawn_by
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import predict
from prestep.sim.spec.sections import Scenario
from prestep.validation.formats.records import is_positive, text_of
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.validation.report.interface import Skip
from prestep.validation.sets.sets import set_table

At = Callable[[Scenario], Scenario]
POWER, ENERGY, CLOCK = "mean power", "energy of a step", "clock"
GIVEN = "mean power, time given"
UNITS = {POWER: "W", ENERGY: "J", GIVEN: "W", CLOCK: "MHz"}
#: Key of set.toml with the limit on the mean error of a kind.
LIMITS = {POWER: "power", ENERGY: "energy", GIVEN: "given", CLOCK: "clock"}


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1, cluster: str | None = None
) -> FiguresReport:
    """Predicts what the steps of a set draw, or of other rows in the same format.

    Parameters
    ----------
    cluster
        Where they were measured; default: as set.toml says by the names of files.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table = set_table(name)
    places = Places(table["clusters"], table.get("hosts", {}), cluster)

    def show(kind: str, value: float) -> str:
        return f"{value:.4g} {UNITS[kind]}"

    return report_on(name, rows, LIMITS, partial(_of_file, places), show=show)


@dataclass(frozen=True)
class Places:
    """Where rows were measured: a cluster by a part of a file's name, or the one asked for; hosts by file.

    A host is the factor on its times: every start of a machine has one of its own.
    """

    clusters: Mapping[str, str]
    hosts: Mapping[str, float]
    asked: str | None = None

    def of(self, path: Path, scenario: Scenario) -> Scenario:
        """The scenario of a row of a file, there."""
        name = self.asked or cluster_of(path, self.clusters)
        there = replace(scenario.cluster, name=name)
        if path.stem in self.hosts:
            there = replace(there, host_factor=self.hosts[path.stem])
        return replace(scenario, cluster=there)


def _of_file(places: Places, path: Path, skips: list[Skip]) -> Iterator[Figure]:
    if places.asked is None:
        cluster_of(path, places.clusters)  # no row of a file that says no machine
    at = partial(places.of, path)
    pairs = list(zip(read_rows(path), _records(path), strict=True))
    for row, record in progress.track(pairs, "rows"):
        if row.error:
            skips.append(Skip(row.name, row.where, row.error))
        else:
            yield from _cases(row, record, at)


def _records(path: Path) -> list[dict[str, Any]]:
    return [files.json_of(line) for line in text_of(path).splitlines() if line.strip()]


def _cases(row: Row, record: Mapping[str, Any], at: At) -> list[Figure]:
    try:
        watts = _positive(row, record, "watts_mean")
        seconds = _positive(row, record, "window_step_s")
        clock = _clock(row, record)
    except InputError as error:
        return [Figure(row.name, POWER, math.nan, math.nan, str(error))]
    measured = {POWER: watts, ENERGY: watts * seconds, GIVEN: watts}
    measured |= {} if clock is None else {CLOCK: clock}
    try:
        predicted = _predict(row, at, seconds)
    except PrestepError as error:
        text = str(error)
        return [
            Figure(row.name, k, value, math.nan, text) for k, value in measured.items()
        ]
    return [
        Figure(row.name, k, value, predicted[k])
        for k, value in measured.items()
        if math.isfinite(predicted[k])
    ]


def _clock(row: Row, record: Mapping[str, Any]) -> float | None:
    """MHz of the GPU's SMs, where it was read."""
    key = "sm_clock_mhz"
    return None if record.get(key) is None else _positive(row, record, key)


def _positive(row: Row, record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    if is_positive(value):
        return float(value)  # type: ignore[arg-type]
    raise InputError(Mistake(row.where, key, repr(value), "a number above 0"))


def _predict(row: Row, at: At, seconds: float) -> dict[str, float]:
    """What prestep says that the step of a row draws, by kind; `seconds` are those that it took."""
    result = predict(at(scenario_of(row)))
    energy, details = result.energy, result.details
    if energy is None or details is None:
        raise InputError(Mistake(row.where, "", "no watts of its GPU", "[draw]"))
    share = Share(details.gpu, len(result.step_time_by_rank), details.kernels)
    return {
        POWER: energy.gpu_power,
        ENERGY: energy.gpu_step_energy,
        GIVEN: drawn_by(share, seconds).power,
        CLOCK: energy.gpu_clock_hz / 1e6,
    }
