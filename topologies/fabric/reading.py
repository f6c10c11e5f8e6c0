"""What a graph says, read one attribute at a time: mistakes are collected, and what was assumed is noted."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.units import parse_bandwidth
from prestep.topologies.core.quantity import Quantity, number_of, shown

#: What programs that draw graphs write. It says nothing of a cluster: noted and left out.
DRAWN = ("label", "pos", "x", "y", "z", "color", "colour", "size", "shape", "layer", "subset")  # fmt: skip
#: How alike a kind is to one that means something when it is a misspelling of it.
_ALIKE = 0.8
#: Slower, and later, than any link: a number below or above is one of Gbit/s or of microseconds.
_SLOWEST, _LATEST = 1e5, 0.1
_SHOWN = 8


@dataclass
class Reading:
    """A graph that is being read: its mistakes, and notes on what was assumed or left out."""

    where: str
    mistakes: list[Mistake] = field(default_factory=list)
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _counts: Counter[str] = field(default_factory=Counter)

    def wrong(
        self, element: str, key: str, found: str, expected: str, hint: str = ""
    ) -> None:
        """A mistake; of many alike the first are enough to see the pattern."""
        self._counts[f"{key} {expected}"] += 1
        if self._counts[f"{key} {expected}"] <= _SHOWN:
            place = f"{element}.{key}" if key else element
            self.mistakes.append(Mistake(self.where, place, found, expected, hint))

    def facts(self) -> dict[str, Quantity]:
        """The notes, as facts of the cluster."""
        return {
            key: Quantity(float(count), "guess", why)
            for (key, why), count in self.notes.items()
        }

    def known(
        self,
        what: str,
        elements: Collection[tuple[str, Mapping[str, Any]]],
        known: Collection[str],
    ) -> None:
        """Refuses attributes that nothing reads, each once for all elements that have it."""
        first: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for element, data in elements:
            for key in [key for key in data if key not in known]:
                first.setdefault(str(key), element)
                counts[str(key)] += 1
        for key, count in counts.items():
            if key in DRAWN:
                why = "a cluster has no place for it"
                self.notes[f"dropped: {what} attribute {key}", why] += count
                continue
            of = f"of {count} {what}s, such as {first[key]}" if first[key] else ""
            hint = did_you_mean(key, known) or f"they have {', '.join(known)}"
            found = f"an unknown attribute {of}".rstrip()
            self.wrong(what, key, found, f"an attribute of {what}s", hint)

    def text(self, element: str, data: Mapping[str, Any], key: str) -> str:
        """A text, or a whole number as one; "" for none."""
        value = data.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None and not isinstance(value, str):
            self.wrong(element, key, shown(value), "a text")
            return ""
        return value or ""

    def kind(
        self, element: str, data: Mapping[str, Any], known: Collection[str], like: str
    ) -> str:
        """The kind of a node or an edge; one that is spelt almost like one that means something is a mistake."""
        kind = self.text(element, data, "kind")
        if not kind and not isinstance(data.get("kind"), bool | float | list | dict):
            self.wrong(element, "", 'no attribute "kind"', f"a kind such as {like}")
        bare = kind.lower().replace("_", "").replace("-", "").replace(" ", "")
        near = difflib.get_close_matches(bare, known, n=1, cutoff=_ALIKE)
        if near and kind not in known:
            hint = f'did you mean "{near[0]}"? or take a name that is less alike'
            self.wrong(element, "kind", shown(kind), "a kind", hint)
        return kind

    def quantity(
        self,
        element: str,
        key: str,
        value: object,
        parse: Callable[[object, str, str], float],
        default: float,
    ) -> float:
        """A rate or a time: a number in SI units, or a text with its unit; the default where it is wrong."""
        rate = parse is parse_bandwidth
        number = number_of(value)
        if math.isnan(number) and isinstance(value, str):
            try:
                number = parse(value, self.where, f"{element}.{key}")
                sound = number > 0 or not rate
            except InputError as error:
                [mistake] = error.mistakes
                expected, hint = _expected(rate), mistake.hint
                self.wrong(element, key, shown(value), expected, hint)
                return default
        else:
            sound = number >= _SLOWEST if rate else 0 <= number <= _LATEST
        if not sound or not math.isfinite(number):
            self.wrong(element, key, shown(value), _expected(rate), _unit(number, rate))
            return default
        return number

    def whole(
        self,
        element: str,
        data: Mapping[str, Any],
        key: str,
        default: float,
        limits: tuple[int, int],
    ) -> float:
        """A whole number within limits, or the default."""
        if data.get(key) is None:
            return default
        number = number_of(data[key])
        if not limits[0] <= number <= limits[1] or number != int(number):
            expected = (
                f"a whole number of at least {limits[0]} and at most {limits[1]:,}"
            )
            self.wrong(element, key, shown(data[key]), expected)
            return default
        return int(number)


def _expected(rate: bool) -> str:
    if rate:
        return 'a finite number above 0, in bytes/s, or a text such as "50 GB/s"'
    return 'a finite number of seconds, not negative, or a text such as "1 us"'


def _unit(number: float, rate: bool) -> str:
    """What to do with a number that is right in another unit."""
    if rate and 0 < number < _SLOWEST:
        return f'write the unit: "{number:g} Gbit/s" or "{number:g} GB/s"'
    if not rate and math.isfinite(number) and number > _LATEST:
        return f'write the unit: "{number:g} us" or "{number:g} ns"'
    return ""
