"""A comparison of two comparisons: what moved, and what got worse, between two versions of prestep.

Averages hide errors that cancel, so every case counts by itself: a prediction has moved when it differs by more than
`MOVED` from that of the base, and has got worse when its error grew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim.units import format_duration
from prestep.validation.report.gate import Check, none_of
from prestep.validation.report.interface import Table

MOVED = 0.005  # share of the base's prediction
SLICE_SLACK = (
    0.0025  # the mean error of a slice may grow by this share of the measured value
)
CASE_SLACK = 0.02  # and that of one case by this
LISTED = 8  # cases that a check names
HEAD = ("set", "case", "slice", "base", "now", "moved", "error before", "error now", "")
_SLICE = ("set", "slice", "n", "mape_before", "mape")
SLICE_HEAD = ("set", "slice", "n", "mean before", "mean now", "grew")


@dataclass(frozen=True)
class Move:
    """A case of both versions: predictions in s, signed errors as shares of the measured value.

    What nobody has measured (set `probes`) has no error, before and now: it can move, and not get worse.
    """

    set_: str
    name: str
    slice: str
    before: float
    now: float
    error_before: float
    error_now: float

    @property
    def moved(self) -> float:
        if self.now == self.before:  # 0 and 0 too
            return 0.0
        return self.now / self.before - 1 if self.before else math.inf

    @property
    def growth(self) -> float:
        """By how much the error grew, as a share of the measured value; nan (never good) if one is not a number."""
        return abs(self.error_now) - abs(self.error_before)

    @property
    def tells(self) -> bool:
        """Whether it is to be listed: moved by more than `MOVED`, or worse by more than rounding."""
        return not (abs(self.moved) <= MOVED and self.growth <= 1e-6)

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.set_,
            "id": self.name,
            "slice": self.slice,
            "before": self.before,
            "now": self.now,
            "moved": self.moved,
            "error_before": self.error_before,
            "error_now": self.error_now,
            "worse": not self.growth <= 1e-6,
        }


@dataclass(frozen=True)
class Comparison:
    """What differs between the reports of a base and of now.

    Attributes
    ----------
    base : str
        Where the base comes from.
    pairs : tuple of Move
        Every case of both.
    gone, broken, new : tuple of str
        Cases that the base had and now has not; that the base predicted and now has no prediction; that are new.
    unknown : tuple of str
        Sets that the base does not have.
    """

    base: str
    pairs: tuple[Move, ...]
    gone: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def moves(self) -> list[Move]:
        """Those to tell, the largest growth of an error first."""
        listed = [pair for pair in self.pairs if pair.tells]
        return sorted(
            listed,
            key=lambda m: (
                -m.growth if math.isfinite(m.growth) else -math.inf,
                m.set_,
                m.name,
            ),
        )

    @property
    def differing(self) -> int:
        """Predictions that are not the same number as the base's, by however little."""
        return sum(pair.now != pair.before for pair in self.pairs)

    @property
    def exact(self) -> Check:
        """No prediction moved at all: what a change elsewhere must leave."""
        names = [
            f"{pair.set_} {pair.name}" for pair in self.pairs if pair.now != pair.before
        ]
        return none_of("compared: predictions that differ", names, LISTED)

    @property
    def slices(self) -> dict[tuple[str, str], tuple[int, float, float]]:
        """(cases, mean error before, now) by set and slice."""
        by_slice: dict[tuple[str, str], list[Move]] = {}
        for pair in self.pairs:
            for name in dict.fromkeys(("all", pair.slice)):
                by_slice.setdefault((pair.set_, name), []).append(pair)
        return {
            key: (
                len(of),
                _mean(m.error_before for m in of),
                _mean(m.error_now for m in of),
            )
            for key, of in by_slice.items()
        }

    @property
    def checks(self) -> tuple[Check, ...]:
        """No case lost, no slice's mean error grown past tolerance, nor a case's in a slice that has not got better.

        A better model may cost a case something: that is told, and fails only where its slice gained nothing.
        """
        checks = [
            none_of("compared: cases gone", self.gone, LISTED),
            none_of("compared: no longer predicted", self.broken, LISTED),
        ]
        for (set_, name), (_, before, now) in self.slices.items():
            grew = f"compared: {set_}, {name}: mean error grew"
            checks.append(Check(grew, now - before, SLICE_SLACK))
        gained = {key for key, (_, before, now) in self.slices.items() if now < before}
        for pair in self.pairs:
            if not pair.growth <= CASE_SLACK and not (
                (pair.set_, pair.slice) in gained and math.isfinite(pair.growth)
            ):
                grew = f"compared: {pair.set_}, {pair.name}: error grew"
                checks.append(Check(grew, pair.growth, CASE_SLACK))
        return tuple(checks)

    def tables(self) -> Iterator[Table]:
        if self.moves:
            yield Table(
                f"Moved by more than {MOVED:.1%}, or worse, against {self.base}",
                HEAD,
                list(map(_cells, self.moves)),
            )
        changed = [
            (*key, str(n), f"{a:.2%}", f"{b:.2%}", f"{b - a:+.2%}")
            for key, (n, a, b) in self.slices.items()
            if not abs(b - a) <= 1e-6
        ]
        if changed:
            yield Table("Slices whose mean error changed", SLICE_HEAD, changed)

    @property
    def verdict(self) -> str:
        worse = sum(not pair.growth <= 1e-6 for pair in self.pairs)
        moved = sum(not abs(pair.moved) <= MOVED for pair in self.pairs)
        parts = [
            f"{len(self.pairs)} cases against {self.base}: {moved} moved by more than {MOVED:.1%}, {worse} worse"
        ]
        parts.append(f"{self.differing} not identical")
        for what, names in (
            ("gone", self.gone),
            ("no longer predicted", self.broken),
            ("new", self.new),
        ):
            if names:
                parts.append(f"{len(names)} {what}")
        if self.unknown:
            parts.append(f"not in the base: {', '.join(self.unknown)}")
        return ", ".join(parts)

    def of(self, set_: str) -> Comparison:
        """The part about one set."""
        gone, broken, new = (
            tuple(name for name in names if name.startswith(f"{set_} "))
            for names in (self.gone, self.broken, self.new)
        )
        pairs = tuple(pair for pair in self.pairs if pair.set_ == set_)
        return Comparison(
            self.base,
            pairs,
            gone,
            broken,
            new,
            tuple(n for n in self.unknown if n == set_),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "cases": len(self.pairs),
            "differing": self.differing,
            "moves": [move.to_json() for move in self.moves],
            "gone": list(self.gone),
            "no_longer_predicted": list(self.broken),
            "new": list(self.new),
            "sets_not_in_base": list(self.unknown),
            "slices": [
                dict(zip(_SLICE, (*key, *figures), strict=True))
                for key, figures in self.slices.items()
            ],
            "checks": [check.to_json() for check in self.checks],
        }


def _mean(errors: Iterator[float]) -> float:
    values = [abs(error) for error in errors]
    return math.fsum(values) / len(values)


def _cells(move: Move) -> tuple[str, ...]:
    """The cells of a case that moved."""
    case, moved = (move.set_, move.name, move.slice), f"{move.moved:+.2%}"
    # An answer of `probes`, of whatever unit, has no error.
    if move.error_before == move.error_now == 0.0:
        values = f"{move.before:.6g}", f"{move.now:.6g}"
        return (*case, *values, moved, "", "", "")
    times = format_duration(move.before), format_duration(move.now)
    errors = f"{move.error_before:+.2%}", f"{move.error_now:+.2%}"
    worse = "worse" if not move.growth <= 1e-6 else ""
    return (*case, *times, moved, *errors, worse)


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
    moves: list[Move] = []
    gone, broken, new = list[str](), list[str](), list[str]()
    for set_ in (name for name in newer if name in older):
        before, after = older[set_], newer[set_]
        gone += [f"{set_} {key[0]}" for key in before.keys() - after.keys()]
        for key, case in after.items():
            if key not in before:
                new.append(f"{set_} {key[0]}")
            elif _value(before[key]) is None:
                continue
            elif _value(case) is None:
                broken.append(f"{set_} {key[0]}")
            else:
                moves.append(_move(set_, key[0], before[key], case))
    unknown = tuple(set_ for set_ in newer if set_ not in older)
    return Comparison(
        name, tuple(moves), tuple(sorted(gone)), tuple(broken), tuple(new), unknown
    )


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
