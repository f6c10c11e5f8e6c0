"""Measured steps by what was run: whether a scenario has been measured, and how well similar runs are predicted.

``measured-runs.csv`` lists the steps of all validation sets under the key of their scenario
(`prestep.sim.record.identity`),
with the prediction of the last whole validation. The laboratory writes it (`python -m lab.report.measured_runs`).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from prestep.sim.record.expected_error import TABLE
from prestep.sim.record.identity import Kind, key_of, kind_of
from prestep.sim.spec.sections import Scenario

#: Neighbours that are listed.
NEAREST = 5
#: Distance of two runs: for each property that differs, and for each doubling of a size.
_DIFFERS = {
    "gpu": 6.0,
    "framework": 5.0,
    "model": 4.0,
    "mode": 2.0,
    "precision": 1.5,
    "recompute": 0.5,
}
_DOUBLING = {"gpus": 0.3, "parameters": 0.6, "seq_len": 0.3, "tokens": 0.2}


@dataclass(frozen=True)
class MeasuredRun:
    """A measured step: times in s (`predicted` is nan where no whole validation has it), and whether it was fitted to.

    `note`: noisy, or what its source does not say.
    """

    key: str
    set: str
    row: str
    measured: float
    predicted: float
    fitted: bool
    note: str
    kind: Kind

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1


@lru_cache(maxsize=1)
def measured_runs() -> tuple[MeasuredRun, ...]:
    """Returns all measured steps, in the order of the file."""
    if not TABLE.is_file():
        return ()
    return tuple(
        map(_read, csv.DictReader(io.StringIO(TABLE.read_text(encoding="utf-8"))))
    )


def _read(line: Mapping[str, str]) -> MeasuredRun:
    texts = {field.name: line[field.name] for field in fields(Kind)}
    values: dict[str, Any] = {
        name: float(text) if name in _DOUBLING else text for name, text in texts.items()
    }
    kind = Kind(**values)
    return MeasuredRun(
        line["key"],
        line["set"],
        line["row"],
        float(line["measured"]),
        float(line["predicted"] or math.nan),
        line["fitted"] == "yes",
        line["note"],
        kind,
    )


def lookup(scenario: Scenario, step_time: float) -> dict[str, Any] | None:
    """Returns measurements like a scenario that is predicted to take `step_time` seconds; None for jobs.

    ``cases``: measurements of the very same run, with the error of this prediction; ``neighbours``: the nearest others,
    with that of their own.
    """
    key = key_of(scenario)
    if not key:
        return None
    mine = kind_of(scenario)
    same = [case for case in measured_runs() if case.key == key]
    others = [
        case
        for case in measured_runs()
        if case.key != key and math.isfinite(case.predicted)
    ]
    near = sorted(
        others, key=lambda case: (distance(mine, case.kind), case.set, case.row)
    )
    return {
        "step_time": step_time,
        "cases": [_row_json(case, step_time) for case in same],
        "neighbours": [
            {**_row_json(case, case.predicted), "differs": differences(mine, case.kind)}
            for case in near[:NEAREST]
        ],
    }


def distance(a: Kind, b: Kind) -> float:
    """Returns the distance of two runs: 0 for the same kind and sizes."""
    differ = sum(
        weight
        for name, weight in _DIFFERS.items()
        if getattr(a, name) != getattr(b, name)
    )
    doublings: float = sum(
        weight * abs(getattr(a, name) - getattr(b, name))
        for name, weight in _DOUBLING.items()
    )
    return differ + doublings


def differences(mine: Kind, other: Kind) -> str:
    """Returns the differences in words, such as `h100, 8x GPUs`; of sizes those that differ by a factor of 1.5."""
    texts = [
        str(getattr(other, name))
        for name in _DIFFERS
        if getattr(mine, name) != getattr(other, name)
    ]
    for name in _DOUBLING:
        factor = 2.0 ** (getattr(other, name) - getattr(mine, name))
        if not 2 / 3 < factor < 1.5:
            what = {
                "gpus": "GPUs",
                "seq_len": "sequence",
                "tokens": "tokens per GPU",
            }.get(name, name)
            texts.append(
                f"{factor:.2g}x {what}" if factor >= 1 else f"{what} / {1 / factor:.2g}"
            )
    return ", ".join(texts)


def _row_json(case: MeasuredRun, predicted: float) -> dict[str, Any]:
    return {
        "set": case.set,
        "row": case.row,
        "measured": case.measured,
        "predicted": predicted,
        "error": predicted / case.measured - 1,
        "fitted": case.fitted,
        "note": case.note,
    }
