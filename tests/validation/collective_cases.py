"""Rows of measured collectives, and reports of cases with known errors."""

from __future__ import annotations

from typing import Any

from lab.report.collectives import Case, CollectiveReport, Limits
from prestep.validation.sets.predict_collective import Prediction

LIMITS = Limits(
    {
        "default, 1 MiB and more": {"mean": 0.05},
        "*, 1 MiB and more": {"median": 0.1, "p90": 0.25},
    }
)


def line(**changes: Any) -> dict[str, Any]:
    """A row of an all-reduce, with some of its keys changed; None: without."""
    usual = {
        "label": "default",
        "ranks": 4,
        "kind": "collective",
        "op": "all_reduce",
        "bytes": 2**23,
        "s": 5e-5,
    }
    return {key: value for key, value in (usual | changes).items() if value is not None}


def case(
    error: float,
    slice_: str = "default, 1 MiB and more",
    fitted: bool = False,
    name: str = "a",
) -> Case:
    """A case that was predicted with a relative error."""
    return Case(
        name,
        "f:1",
        slice_,
        "all_reduce",
        4,
        2**20,
        1.0,
        Prediction(1.0 + error, "ring", "LL", 1),
        fitted,
    )


def report(*cases: Case) -> CollectiveReport:
    """A report of these cases."""
    return CollectiveReport("x", "", cases, LIMITS)


def failed(made: CollectiveReport) -> set[str]:
    """Names of the checks that failed."""
    return {check.name for check in made.checks if not check.passed}
