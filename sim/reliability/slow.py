"""Slow hosts of a job from options: how many, how slow, until when, and the tests that look for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prestep.sim.engine.job import HOUR
from prestep.sim.engine.slow_hosts import Slow
from prestep.sim.errors import InputError, Mistake
from prestep.sim.units import parse_duration

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
    if mistakes := [*_mistakes(options)]:
        raise InputError(mistakes)
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
