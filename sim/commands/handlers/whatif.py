"""What `prestep whatif` does."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json, misused, talk
from prestep.sim.errors import InputError, unknown
from prestep.sim.spec import recipes
from prestep.sim.spec.captured import placing
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.scenario_file import is_capture, is_recipe, tables_of
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import whatif as study
from prestep.sim.studies.elements import EACH
from prestep.sim.studies.tornado import tornado
from prestep.sim.studies.whatif_page import comparison_page, tornado_page
from prestep.sim.tools.catalog import find_scenario
from prestep.workloads.job.rl import Rl

Table = dict[str, Any]


def whatif(
    scenario: str,
    overrides: tuple[str, ...],
    each: tuple[str, ...],
    factors: str,
    most: int,
    plot: Path | None,
    json_: bool,
) -> None:
    if each:
        _tornado(scenario, overrides, each, factors, most, plot, json_)
    else:
        _side_by_side(scenario, overrides, plot, json_)


def _side_by_side(
    scenario: str, overrides: Sequence[str], picture: Path | None, json_: bool
) -> None:
    """The scenario as it is, and with changes."""
    path = find_scenario(scenario)
    base = load_scenario(path, _of_base(path, overrides))
    if picture is not None:
        raise misused("--plot", "--plot alone", "--each, whose bars it draws")
    if not overrides:
        hint = "--set nvlink.bandwidth=2x, or --each link-kind"
        raise misused("--set", "nothing to change", "--set or --each", hint)
    changed = load_scenario(path, overrides)
    for note in dict.fromkeys((*base.notes, *changed.notes)):
        talk(note)
    table = _compared(base, changed, overrides)
    if json_:
        echo_json(table)
    else:
        show_page(comparison_page(table))


def _compared(base: Scenario, changed: Scenario, overrides: Sequence[str]) -> Table:
    """Both steps and what differs; of reinforcement learning by its phases."""
    if base.rl != Rl():
        from prestep.sim.rl import result  # slow to import

        table = study.compare(result.predict(base), result.predict(changed))
        return {
            **table,
            "difference_interval": None,
            "changed_kinds": [],
            "same_operations": False,
            "communication_alone": {"base": 0.0, "changed": 0.0},
            "choices": [],
        }
    return study.compared(base, changed, overrides)


def _of_base(path: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """What is no change: a recorded program, or a recipe, has no cluster: the named one is that of both sides.

    Alone, a recorded program's is compared with the cluster that a run takes where none is named.
    """
    if is_recipe(path):
        return recipes.unchanged(tables_of(path), overrides)
    place = placing(overrides) if is_capture(path) else ()
    return place if len(place) < len(overrides) else ()


def _tornado(
    scenario: str,
    overrides: Sequence[str],
    each: Sequence[str],
    factors: str,
    most: int,
    picture: Path | None,
    json_: bool,
) -> None:
    """The scenario, with its changes if there are any, and every element faster and slower."""
    if picture is not None:
        # matplotlib is slow to import, and a wrong ending is told before the work
        from prestep.sim.studies.whatif_plot import check_suffix, plot

        check_suffix(picture)
    words = [word.strip() for text in each for word in text.split(",")]
    wrong = [word for word in words if word not in EACH]
    if wrong:
        raise InputError(
            unknown("command line", "--each", word, EACH) for word in wrong
        )
    loaded = load_scenario(find_scenario(scenario), overrides)
    table = tornado(loaded, words, _factors(factors), most=most)
    if picture is not None:
        plot(table, picture)
        talk(f"wrote {picture}")
    if json_:
        echo_json(table)
    else:
        columns = shutil.get_terminal_size().columns
        click.echo(tornado_page(table, columns))


def _factors(text: str) -> list[float]:
    """`0.5,2` or `0.5x, 2x`."""
    return [_factor(piece.strip().removesuffix("x"), text) for piece in text.split(",")]


def _factor(piece: str, text: str) -> float:
    try:
        number = float(piece)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise misused("--factors", f'"{text}"', "numbers above 0 such as 0.5,2")
    return number
