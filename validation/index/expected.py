"""How far off steps like a scenario's were: the error of the nearest measured runs that no constant was fitted to.

Reads the index (`validation.index.measured`) without its keys and sets, since every `prestep run` asks: a few
milliseconds.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim.spec.sections import Scenario
from validation.index.identity import kind_of
from workloads.precision import precision

INDEX = Path(__file__).parents[1] / "cases" / "known.csv"
_TEXTS = ("gpu", "framework", "model", "mode")
LEAST = 5  # runs that a family needs for a figure
OCTAVES = 2.0  # runs on up to four times as many GPUs, and down to a quarter, are near


@dataclass(frozen=True)
class Run:
    """A measured step of the index, as far as it tells how near and how well predicted it is; `gpus` as log2."""

    gpu: str
    framework: str
    model: str
    mode: str
    gpus: float
    error: float


@lru_cache(maxsize=1)
def _lines() -> tuple[str, ...]:
    if not INDEX.is_file():
        return ()
    return tuple(INDEX.read_text(encoding="utf-8").splitlines())


def judged(gpu: str) -> list[Run]:
    """Runs on a kind of GPU with a prediction, that no constant was fitted to; not the noisy or incompletely said."""
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


def expected(scenario: Scenario, gpu: str) -> dict[str, Any] | None:
    """Errors of the nearest runs on the same kind of `gpu`; None where too few were measured, and in 32 bits none were.

    ``shared`` names what they have in common with the scenario besides the GPU (`framework`, `model`, `gpus`, `layout`,
    each kept only while enough runs share it); ``gpus`` the fewest and the most that they ran on; ``n``, mean absolute
    ``error``, ``bias`` and the ``worst``, as shares of the measured time.
    """
    if precision(scenario.training.precision).wide:
        return None
    mine = kind_of(scenario, gpu)
    same: dict[str, Callable[[Run], bool]] = {
        "framework": lambda run: run.framework == mine.framework,
        "model": lambda run: run.model == mine.model,
        "gpus": lambda run: abs(run.gpus - mine.gpus) <= OCTAVES,
        "layout": lambda run: run.mode == mine.mode,
    }
    runs = judged(mine.gpu)
    if len(runs) < LEAST:
        return None
    shared: list[str] = []
    for name, test in same.items():
        nearer = [run for run in runs if test(run)]
        if len(nearer) >= LEAST:
            shared, runs = [*shared, name], nearer
    said = {"framework": mine.framework, "model": mine.model, "layout": mine.mode}
    return {
        "gpu": mine.gpu,
        **{name: text if name in shared else None for name, text in said.items()},
        "gpus": [round(2 ** end(run.gpus for run in runs)) for end in (min, max)],
        "shared": shared,
        **_errors(runs),
    }


def _errors(runs: Sequence[Run]) -> dict[str, float]:
    errors = [run.error for run in runs]
    return {
        "n": len(errors),
        "error": statistics.fmean(map(abs, errors)),
        "bias": statistics.fmean(errors),
        "worst": max(errors, key=abs),
    }
