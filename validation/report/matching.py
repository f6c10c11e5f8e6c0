"""Two lists of reports, matched case by case."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.validation.report.against import Comparison, Move

SLICE_KEYS = ("slice", "family", "group", "kind")


# A case of a report by its name and how many of that name came before.
Key = tuple[str, int]


Cases = Mapping[Key, Mapping[str, Any]]


def against(
    base: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], name: str
) -> Comparison:
    """Two lists of reports of `prestep validate --json`, case by case; sets only of the base are left out."""
    older = {str(report["set"]): _cases(report) for report in base}
    newer = {str(report["set"]): _cases(report) for report in now}
    pairs = [
        _pair_of(set_, older[set_], newer[set_]) for set_ in newer if set_ in older
    ]
    return Comparison(
        name,
        tuple(move for pair in pairs for move in pair.moves),
        gone=tuple(sorted(case for pair in pairs for case in pair.gone)),
        broken=tuple(case for pair in pairs for case in pair.broken),
        new=tuple(case for pair in pairs for case in pair.new),
        unknown=tuple(set_ for set_ in newer if set_ not in older),
    )


@dataclass(frozen=True)
class _Pair:
    """Two reports of one set: cases that both predicted, and those that only one has or predicted."""

    moves: list[Move]
    gone: list[str]
    broken: list[str]
    new: list[str]


def _pair_of(set_: str, before: Cases, after: Cases) -> _Pair:
    """Two reports of one set, case by case."""
    pair = _Pair([], [], [], [])
    pair.gone.extend(f"{set_} {key[0]}" for key in before.keys() - after.keys())
    for key, case in after.items():
        if key not in before:
            pair.new.append(f"{set_} {key[0]}")
        elif _value(before[key]) is None:
            continue
        elif _value(case) is None:
            pair.broken.append(f"{set_} {key[0]}")
        else:
            pair.moves.append(_move(set_, key[0], before[key], case))
    return pair


def _cases(report: Mapping[str, Any]) -> Cases:
    """By name and how many of that name came before: a table may hold the same configuration twice."""
    seen: Counter[str] = Counter()
    cases: dict[Key, Mapping[str, Any]] = {}
    for case in report["cases"]:
        name = str(case.get("id", case.get("name", "")))
        cases[name, seen[name]] = case
        seen[name] += 1
    return cases


def _value(case: Mapping[str, Any]) -> float | None:
    """The prediction; of a choice, whether it is NCCL's."""
    value = case.get("predicted", case.get("equal"))
    return None if value is None or case.get("error") else float(value)


def _move(
    set_: str, name: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> Move:
    slice_ = next((str(now[key]) for key in SLICE_KEYS if now.get(key)), "all")
    errors = (_error(before), _error(now))
    return Move(set_, name, slice_, _value(before) or 0.0, _value(now) or 0.0, *errors)


def _error(case: Mapping[str, Any]) -> float:
    if "equal" in case:
        return float(not case["equal"])
    error = case.get("signed_error")
    if error is None and case.get("measured", math.nan) is None:
        return 0.0
    return math.nan if error is None else float(error)
