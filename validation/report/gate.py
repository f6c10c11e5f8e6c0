"""Decides whether a comparison is good enough: figures against limits, and misses that are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake


@dataclass(frozen=True)
class Check:
    """One figure against its limit.

    `share`: both are shares of the measured value, not counts. `excusable`: a table of known misses may list it.
    """

    name: str
    value: float
    limit: float
    detail: str = ""
    share: bool = True
    excusable: bool = True

    @property
    def passed(self) -> bool:
        """A value that is not a number is never good."""
        return self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "passed": self.passed,
            "detail": self.detail,
        }


def rows_check(judged: int, left_out: Mapping[str, int]) -> Check:
    """That some row was held to a limit: a set that judged nothing has shown nothing, and no excuse counts.

    Parameters
    ----------
    judged
        Rows that some limit was applied to.
    left_out
        How many rows were not, by reason: what is said when there is none.
    """
    reasons = [f"{count} {reason}" for reason, count in left_out.items() if count]
    why = f"nothing was judged: {', '.join(reasons) or 'there is no row'}"
    return Check(
        "no rows",
        float(judged == 0),
        0.0,
        "" if judged else why,
        share=False,
        excusable=False,
    )


def none_of(name: str, cases: Collection[str], listed: int | None = None) -> Check:
    """That there are no such cases; of those that there are `listed` are told (None: all)."""
    told = ", ".join(list(cases)[:listed])
    return Check(name, len(cases), 0.0, told, share=False)


def predicted_check(names: Collection[str], listed: int | None = None) -> Check:
    """That all rows were predicted; `names` of those that were not."""
    return none_of("rows not predicted", names, listed)


def prediction_checks(
    cases: int, unpredicted: Collection[str], skipped: int
) -> tuple[Check, Check]:
    """What a set of `cases` begins with: some row was judged, and no prediction failed."""
    left_out = {"skipped": skipped, "not predicted": len(unpredicted)}
    judged = cases - len(unpredicted)
    return rows_check(judged, left_out), predicted_check(unpredicted)


# A known miss may not grow by more than this share of itself: rounding, not a licence.
MISS_SLACK = 0.01


def new_misses(checks: Iterable[Check], known: Path) -> list[Check]:
    """Failed checks that `known` (a TOML table: name of the check = its figure) does not list, or lists as smaller.

    The limits stay what they are and a run outside them still fails; this only tells a regression from a miss that
    is written down.
    """
    listed = _known_misses(known)
    return [
        check for check in checks if not check.passed and not _excused(check, listed)
    ]


def _excused(check: Check, listed: Mapping[str, float]) -> bool:
    return check.excusable and check.value <= listed.get(check.name, -math.inf) * (
        1 + MISS_SLACK
    )


def _known_misses(path: Path) -> dict[str, float]:
    expected = "a TOML table: name of the check = its figure"
    try:
        listed = files.toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.of(str(path), "", str(error), expected) from None
    wrong = [
        Mistake(str(path), name, repr(v), "a number")
        for name, v in listed.items()
        if type(v) not in (int, float)
    ]
    InputError.check(wrong)
    return listed
