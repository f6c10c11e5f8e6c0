"""Expected error of a prediction: the error on the nearest measured runs that no constant was fitted to.

Every `prestep run` asks, so only the columns that it needs are read, which takes a few milliseconds.
`prestep.sim.record.measured_runs` reads the same table whole.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.planning.planned import Planned
from prestep.sim.record.identity import Kind, kind_of
from prestep.sim.spec.sections import Scenario
from prestep.workloads.models.model import PROGRAM
from prestep.workloads.precision import precision

#: Measured steps with their predictions; the laboratory writes it (`python -m lab.report.measured_runs`).
TABLE = Path(__file__).with_name("measured-runs.csv")
_TEXTS = ("gpu", "framework", "model", "mode")
LEAST = 5  # runs that a family needs for a figure
OCTAVES = 2.0  # runs on up to four times as many GPUs, and down to a quarter, are near


@dataclass(frozen=True)
class Run:
    """A measured step: what kind of run it was, and the signed error of its prediction. `gpus` is a power of two."""

    gpu: str
    framework: str
    model: str
    mode: str
    gpus: float
    error: float


@lru_cache(maxsize=1)
def _lines() -> tuple[str, ...]:
    if not TABLE.is_file():
        return ()
    return tuple(TABLE.read_text(encoding="utf-8").splitlines())


def judged_runs(gpu: str) -> list[Run]:
    """Returns the predicted runs on a kind of GPU that no constant was fitted to, without noisy and incomplete ones."""
    head, *lines = _lines() or ("",)
    # most lines are of other GPUs: they are not taken apart
    own = [head, *(line for line in lines if f",{gpu}," in line)]
    return [
        _run(row)
        for row in csv.DictReader(own)
        if row["gpu"] == gpu
        and row["predicted"]
        and row["fitted"] == "no"
        and not row["note"]
    ]


def _run(row: dict[str, str]) -> Run:
    error = float(row["predicted"]) / float(row["measured"]) - 1
    gpu, framework, model, mode = (row[name] for name in _TEXTS)
    return Run(gpu, framework, model, mode, float(row["gpus"]), error)


def with_expected_error(
    scenario: Scenario, planned: Planned, result: Prediction
) -> Prediction:
    """The prediction with the errors of its nearest measured runs; a recorded program has none."""
    if planned.model.kind == PROGRAM:
        return result
    return replace(
        result, expected_error=expected_error(scenario, planned.fabric.gpu_model)
    )


def expected_error(scenario: Scenario, gpu: str) -> dict[str, Any] | None:
    """Returns the errors of the nearest runs on the same kind of `gpu`; None where fewer than five were measured.

    Nothing was measured in 32 bits, so such runs have none. ``shared`` names what the runs have in common with the
    scenario besides the GPU (`framework`, `model`, `gpus`, `layout`, each while enough runs share it); ``gpus`` the
    fewest and the most that they ran on; ``n``, mean absolute ``error``, ``bias`` and the ``worst`` are shares of the
    measured time.
    """
    if precision(scenario.training.precision).wide:
        return None
    mine = kind_of(scenario, gpu)
    runs = judged_runs(mine.gpu)
    if len(runs) < LEAST:
        return None
    shared, runs = _nearest(runs, mine)
    labels = {"framework": mine.framework, "model": mine.model, "layout": mine.mode}
    return {
        "gpu": mine.gpu,
        **{name: text if name in shared else None for name, text in labels.items()},
        "gpus": [round(2 ** end(run.gpus for run in runs)) for end in (min, max)],
        "shared": shared,
        **_errors(runs),
    }


def _nearest(runs: list[Run], mine: Kind) -> tuple[list[str], list[Run]]:
    """What the nearest runs have in common with mine, and these runs."""
    # From what matters most to what matters least; each narrows the runs while enough are left.
    same: dict[str, Callable[[Run], bool]] = {
        "framework": lambda run: run.framework == mine.framework,
        "model": lambda run: run.model == mine.model,
        "gpus": lambda run: abs(run.gpus - mine.gpus) <= OCTAVES,
        "layout": lambda run: run.mode == mine.mode,
    }
    shared: list[str] = []
    for name, test in same.items():
        nearer = [run for run in runs if test(run)]
        if len(nearer) >= LEAST:
            shared, runs = [*shared, name], nearer
    return shared, runs


def _errors(runs: Sequence[Run]) -> dict[str, float]:
    errors = [run.error for run in runs]
    return {
        "n": len(errors),
        "error": statistics.fmean(map(abs, errors)),
        "bias": statistics.fmean(errors),
        "worst": max(errors, key=abs),
    }
