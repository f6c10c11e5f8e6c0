"""What `prestep whatif` does, for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake, unknown
from sim.spec.load import load_scenario
from sim.tools.catalog import find_scenario

Table = dict[str, Any]


def side_by_side(
    scenario: str, overrides: Sequence[str], plot: Path | None = None
) -> Table:
    """`sim.studies.whatif.compare` of a scenario as it is and with changes.

    Raises
    ------
    InputError
        For mistakes in either, and when nothing is changed.
    """
    path = find_scenario(scenario)
    base = load_scenario(path)
    if plot is not None:
        raise InputError(
            Mistake(
                "command line", "--plot", "--plot alone", "--each, whose bars it draws"
            )
        )
    if not overrides:
        hint = "--set nvlink.bandwidth=2x, or --each link-kind"
        raise InputError(
            Mistake(
                "command line", "--set", "nothing to change", "--set or --each", hint
            )
        )
    changed = load_scenario(path, overrides)
    from sim.studies import (
        whatif,  # after the scenarios are known to be good: its imports are the slow ones
    )

    return whatif.compare(
        *(result.to_dict() for result in whatif.results(base, changed))
    )


def each(
    scenario: str,
    overrides: Sequence[str],
    words: Sequence[str],
    factors: str,
    plot: Path | None = None,
) -> Table:
    """`sim.studies.whatif.tornado` of a scenario, with its changes if there are any; `plot` is a
    file it will be drawn to."""
    from sim.studies import whatif
    from sim.studies.whatif_page import check_suffix

    if plot is not None:
        check_suffix(plot)

    listed = [word.strip() for text in words for word in text.split(",")]
    mistakes = [
        unknown("command line", "--each", word, whatif.EACH)
        for word in listed
        if word not in whatif.EACH
    ]
    if mistakes:
        raise InputError(mistakes)
    return whatif.tornado(
        load_scenario(find_scenario(scenario), overrides), listed, _factors(factors)
    )


def _factors(text: str) -> list[float]:
    """`0.5,2` or `0.5x, 2x`."""
    found: list[float] = []
    for piece in text.split(","):
        try:
            number = float(piece.strip().removesuffix("x"))
        except ValueError:
            number = -1.0
        if not 0 < number < float("inf"):
            raise InputError(
                Mistake(
                    "command line",
                    "--factors",
                    f'"{text}"',
                    "numbers above 0 such as 0.5,2",
                )
            )
        found.append(number)
    return found


def page(table: Table) -> str:
    """Either table for people."""
    from sim.studies import whatif_page

    return (
        whatif_page.tornado_page(table)
        if "elements" in table
        else whatif_page.comparison_page(table)
    )


def draw(table: Table, path: Path) -> Path:
    """Draw a tornado; returns the path."""
    from sim.studies.whatif_page import plot

    plot(table, path)
    return path
