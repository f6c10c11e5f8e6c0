"""Decides whether a comparison is good enough; the tolerances lie beside the cases."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import files
from sim.errors import InputError, Mistake

if TYPE_CHECKING:
    from validation.step_report import Report


@dataclass(frozen=True)
class Tolerances:
    """Limits of errors as shares of the measured value; see `cases/h200/tolerances.toml`."""

    noisy_spread: float
    step_mape: float
    family_mape: float
    bias: float
    worst: float
    noisy_mape: float
    memory_mape: float
    memory_worst: float
    ratio_worst: float | None = None

    @classmethod
    def read(cls, path: Path) -> Tolerances:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        step, noisy, memory = told["step"], told["noisy"], told["memory"]
        return cls(
            told["noisy_spread"],
            step["mape"],
            step["family_mape"],
            step["bias"],
            step["worst"],
            noisy["mape"],
            memory["mape"],
            memory["worst"],
            told.get("ratio", {}).get("worst"),
        )


@dataclass(frozen=True)
class Check:
    """One figure against its limit; `share`: both are shares of the measured value, not counts."""

    name: str
    value: float
    limit: float
    detail: str = ""
    share: bool = True

    @property
    def passed(self) -> bool:
        """A value that is not a number is never good."""
        return self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else None
        return {"name": self.name, "value": value, "limit": self.limit, "passed": self.passed, "detail": self.detail}


def first_checks(compared: int, unpredicted: Collection[str]) -> list[Check]:
    """That there are rows, and that all of them were predicted: what every kind of set begins with."""
    return [
        Check("no rows", float(compared == 0), 0.0, share=False),
        Check("rows not predicted", len(unpredicted), 0.0, ", ".join(unpredicted), share=False),
    ]


def judge(report: Report) -> tuple[Check, ...]:
    """Every check that the report's rows allow, and that there are rows at all and all were predicted."""
    limits, overall, noisy, memory = report.tolerances, report.select(), report.select(noisy=True), report.memory
    compared = len(report.cases) - len(report.unpredicted)
    checks = [
        *first_checks(compared, [case.row.name for case in report.unpredicted]),
        *([Check("rows skipped", len(report.skipped), 0.0, _ids(report), share=False)] if report.whole else []),
        Check("rows without memory", len(report.without_memory), 0.0, _names(report.without_memory), share=False),
    ]
    if overall.n:
        checks += [
            Check("step time: mean", overall.mape, limits.step_mape),
            Check("step time: bias", abs(overall.bias), limits.bias),
            Check("step time: worst", overall.worst, limits.worst, overall.worst_id),
        ]
    checks += [Check(f"{name}: mean", errors.mape, limits.family_mape) for name, errors in report.families.items()]
    if limits.ratio_worst is not None and report.ratios.n:
        checks.append(Check("ratio to base: worst", report.ratios.worst, limits.ratio_worst, report.ratios.worst_id))
    if noisy.n:
        checks.append(Check("noisy rows: mean", noisy.mape, limits.noisy_mape))
    if memory.n:
        checks += [
            Check("peak memory: mean", memory.mape, limits.memory_mape),
            Check("peak memory: worst", memory.worst, limits.memory_worst, memory.worst_id),
        ]
    return tuple(checks)


def _ids(report: Report) -> str:
    return ", ".join(row.name for row in report.skipped)


def _names(cases: tuple[Any, ...]) -> str:
    return ", ".join(case.row.name for case in cases)


# A known miss may not grow by more than this share of itself: rounding, not a licence.
MISS_SLACK = 0.01


def new_misses(checks: Iterable[Check], known: Path) -> list[Check]:
    """Failed checks that `known` (a TOML table: name of the check = its figure) does not list, or lists as smaller.

    The limits stay what they are and a run outside them still fails; this only tells a regression from a miss that
    is written down.
    """
    listed = _known_misses(known)
    return [c for c in checks if not c.passed and not c.value <= listed.get(c.name, -math.inf) * (1 + MISS_SLACK)]


def _known_misses(path: Path) -> dict[str, float]:
    expected = "a TOML table: name of the check = its figure"
    try:
        listed = files.toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(Mistake(str(path), "", str(error), expected)) from None
    wrong = [Mistake(str(path), name, repr(v), "a number") for name, v in listed.items() if type(v) not in (int, float)]
    if wrong:
        raise InputError(wrong)
    return listed
