"""Which part of the trace `prestep run` writes: --trace-window, --trace-ranks and --trace-kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from prestep.sim.errors import InputError, Mistake
from prestep.sim.units import parse_duration
from prestep.workloads.job.limits import RANKS


class Most(click.ParamType):  # type: ignore[type-arg]  # click 8.2 takes none
    """A whole number, or `all`."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """How many at most."""
        if value == "all":
            return math.inf
        if not (str(value).isdecimal() and len(str(value)) < 16):
            self.fail(f"{value!r} is neither a whole number nor `all`", param, ctx)
        return int(value)


def trace_part(
    files: Mapping[str, Any], window: str, ranks: str, kernels: float | None
) -> dict[str, Any]:
    """The exporter's options for the trace; `files` are what is written, by option.

    Raises
    ------
    InputError
        For options that mean nothing without another, and windows or ranks that cannot be read.
    """
    mistakes, chosen = [], dict[str, Any]()
    if files["each"] and files["report"] is None:
        mistakes.append(
            Mistake(
                "command line",
                "--each",
                "--each alone",
                "--report FILE.html, or `prestep whatif`",
            )
        )
    for name, text in (("--trace-window", window), ("--trace-ranks", ranks)):
        if text and files["trace"] is None:
            mistakes.append(
                Mistake("command line", name, f"{name} alone", "--trace FILE")
            )
    for name, text, read in (("window", window, _window), ("ranks", ranks, _ranks)):
        if text:
            with InputError.collected(mistakes):
                chosen[name] = read(text)
    if kernels is not None and not (files["trace"] or files["timeline"]):
        name, expected = "--trace-kernels", "--trace FILE, or --timeline FILE"
        mistakes.append(Mistake("command line", name, f"{name} alone", expected))
    InputError.check(mistakes)
    return chosen if kernels is None else chosen | {"kernels": kernels}


def _window(text: str) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    wrong = Mistake(
        "command line",
        "--trace-window",
        f'"{text}"',
        "FROM:TO with units such as 0.1s:200ms, FROM before TO",
    )
    try:
        begin, end = (
            parse_duration(part) if part.strip() else none
            for part, none in ((first, 0.0), (last, float("inf")))
        )
    except (ValueError, InputError):
        raise InputError(wrong) from None
    if not colon or not begin < end:
        raise InputError(wrong)
    return begin, end


def _ranks(text: str) -> frozenset[int]:
    """`0-7,16`."""
    ranks: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if (
            not _is_rank(first, RANKS)
            or (dash and not _is_rank(last, RANKS))
            or (dash and int(last) < int(first))
        ):
            expected = f"ranks such as 0-7,16, below {RANKS}"
            raise InputError.of(
                "command line", "--trace-ranks", f'"{text[:60]}"', expected
            )
        ranks.update(range(int(first), int(last or first) + 1))
    return frozenset(ranks)


def _is_rank(text: str, end: int) -> bool:
    """Digits, and few of them: a set is made of all ranks that are named."""
    return text.isdecimal() and len(text) < 10 and int(text) < end
