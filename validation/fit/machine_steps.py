"""How well a calibrated machine predicts its own training steps, which no constant was fitted to but their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from validation.fit.machine_host import TINY
from validation.formats.measurement import Measured
from validation.formats.rows import Row, read_rows
from validation.sets.steps import predict_row

MOST = 40  # rows; a few seconds each at worst


@dataclass(frozen=True)
class Judged:
    """A measured step, s, with what the calibrated cluster and the one under it predict, and whether it was traced."""

    row: Row
    here: float
    below: float
    traced: bool

    @property
    def errors(self) -> tuple[float, float]:
        return self.here / self.row.measured - 1, self.below / self.row.measured - 1


def judge(
    measured: Measured, cluster: Path, base: str
) -> tuple[list[Judged], list[str]]:
    """Steps that are not tiny, and why others cannot be predicted."""
    path = measured.file("training.jsonl")
    rows = [
        row
        for row in (read_rows(path) if path else [])
        if not row.error and row.case.get("model") not in TINY
    ]
    traced = {path.name.partition(".")[0] for path in measured.traces()}
    judged, reasons = [], []
    for row in rows[:MOST]:
        here = _predicted(row, {"file": str(cluster)})
        below = _predicted(row, _cluster(base))
        if isinstance(here, str) or isinstance(below, str):
            reasons.append(f"{row.name}: {here if isinstance(here, str) else below}")
        else:
            judged.append(Judged(row, here, below, row.id in traced))
    return judged, reasons


def _cluster(base: str) -> dict[str, str]:
    """The keys of [cluster] for a name or a file."""
    if base.endswith(".toml"):
        return {"file": str(Path(base).resolve())}
    return {"name": base}


def _predicted(row: Row, cluster: Mapping[str, str]) -> float | str:
    prediction = predict_row(replace(row, cluster=cluster))
    return prediction.error or float(prediction.step_time)


def table(judged: list[Judged], reasons: list[str]) -> str:
    """Every row, and mean absolute errors."""
    lines = [f"{'step':32} {'measured':>11} {'error':>8} {'before':>8}"]
    for one in judged:
        here, below = one.errors
        note = "  kernels from its trace" if one.traced else ""
        lines.append(
            f"{one.row.name:32} {one.row.measured * 1e3:8.2f} ms {here:+8.1%} {below:+8.1%}{note}"
        )
    if judged:
        here, below = (np.abs([one.errors[i] for one in judged]).mean() for i in (0, 1))
        lines.append(f"{'mean |error|':32} {len(judged):8}    {here:8.1%} {below:8.1%}")
    return "\n".join([*lines, *(f"not predicted: {reason}" for reason in reasons)])
