"""Hosts that slow a job down and fail nothing, so that nobody notices for a while; and tests that find them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.sim.units import parse_duration

HOUR = 3600.0


@dataclass(frozen=True)
class Slow:
    """Slow hosts of a job; times in s.

    Attributes
    ----------
    bad : float
        Mean number of them when the job starts.
    rate : float
        Hosts of the job that become slow per second.
    slowdown : float
        Factor on the job's steps while it has one: everybody waits for it.
    notice : float
        Seconds from then until it is noticed and taken out.
    test : float
        Seconds of tests before every start.
    finds : float
        Share of slow hosts that the tests find.
    """

    bad: float = 0.0
    rate: float = 0.0
    slowdown: float = 1.0
    notice: float = math.inf
    test: float = 0.0
    finds: float = 0.0


NONE = Slow()


class SlowHosts:
    """The slow hosts of one run: since when each of them is, and when the next one becomes slow."""

    def __init__(self, slow: Slow, seed: int) -> None:
        # A generator of its own: failures are the same with and without slow hosts.
        self.slow, self.draw = slow, random.Random(f"slow hosts {seed}")
        self.since = [0.0] * self._number(slow.bad)
        self.at_start, self.found, self.noticed = len(self.since), 0, 0
        self.onset = self._after(0.0)

    def _number(self, mean: float) -> int:
        """How many there are at the start: a Poisson number."""
        number, gone = 0, 0.0
        while mean > 0 and (gone := gone + self.draw.expovariate(1.0)) < mean:
            number += 1
        return number

    def _after(self, now: float) -> float:
        """When a host becomes slow after `now`."""
        rate = self.slow.rate
        return now + self.draw.expovariate(rate) if rate > 0 else math.inf

    @property
    def first(self) -> float:
        """Since when the job is slow, or will be."""
        return self.since[0] if self.since else self.onset

    @property
    def notice(self) -> float:
        """When the first one is noticed."""
        return self.first + self.slow.notice

    def pass_to(self, now: float) -> None:
        """Lets hosts become slow until `now`."""
        while self.onset <= now:
            self.since.append(self.onset)
            self.onset = self._after(self.onset)

    def take_out(self) -> None:
        """The first one was noticed."""
        self.noticed += 1
        del self.since[0]

    def test(self) -> int:
        """How many of those that there are the tests find."""
        left = [one for one in self.since if self.draw.random() >= self.slow.finds]
        found = len(self.since) - len(left)
        self.since, self.found = left, self.found + found
        return found


# -- from options ----------------------------------------------------------------------------------
WHERE = "command line"
FINDS = 0.9  # of tests of another length than a level's
SLOWDOWN = 1.2  # of a job with a slow host: the order of a GPU that throttles


def slow_of(
    options: Mapping[str, Any], notice: float, levels: Mapping[str, Any]
) -> Slow:
    """The slow hosts that options say; none where they say nothing.

    Raises
    ------
    InputError
        With everything that is wrong.
    """
    InputError.check([*_mistakes(options)])
    test, finds = _tests(options.get("preflight"), levels)
    told = options.get("finds")
    gpus = options["gpus"]
    return Slow(
        options.get("bad", 0.0) * gpus,
        options.get("slow_rate", 0.0) / 1e6 / HOUR * gpus,
        options.get("slowdown", SLOWDOWN),
        notice,
        test,
        finds if told is None else told,
    )


def _mistakes(options: Mapping[str, Any]) -> Iterator[Mistake]:
    """Numbers outside of their range."""
    for name, least, most in (
        ("bad", 0.0, 1.0),
        ("finds", 0.0, 1.0),
        ("slow_rate", 0.0, math.inf),
        ("slowdown", 1.0, math.inf),
    ):
        value = options.get(name, least)
        if not (math.isfinite(value) and least <= value <= most):
            bound = f"at least {least:g}"
            expected = bound if most == math.inf else f"{bound}, at most {most:g}"
            option = f"--{name.replace('_', '-')}"
            yield Mistake(WHERE, option, f"{value:g}", expected)


def _tests(level: str | None, levels: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of the tests before a start, and the share that they find."""
    if level is None:
        return 0.0, 0.0
    if level in levels:
        row = levels[level]
        time = parse_duration(row["time"]["value"], WHERE, "--preflight")
        return time, float(row["finds"]["value"])
    return parse_duration(level, WHERE, "--preflight"), FINDS
