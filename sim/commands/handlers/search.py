"""What `prestep search` does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import prod
from pathlib import Path

from prestep.sim import progress
from prestep.sim.analysis.cost import Prices
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import EXIT_OUTSIDE, echo_json, misused, talk
from prestep.sim.spec import recipes
from prestep.sim.spec.load import load_open
from prestep.sim.spec.scenario_file import is_capture, tables_of
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import search as layouts
from prestep.sim.studies.grid import grid_of
from prestep.sim.studies.ranking import TIME, objective_of
from prestep.sim.studies.search import axes, clusters, words
from prestep.sim.studies.search.scenario_file import check_target, write_scenario
from prestep.sim.tools.catalog import find_scenario


def search(
    scenario: str,
    top: int,
    over: tuple[str, ...],
    overrides: tuple[str, ...],
    price: str | None,
    price_per_kwh: float | None,
    pue: float,
    rank_by: str | None,
    trials: int | None,
    jobs: int,
    json_: bool,
    write: Path | None,
) -> None:
    path = find_scenario(scenario)
    prices = _prices(price)
    if is_capture(path):
        _refuse_layouts(path, trials, write)
        asked = clusters.asked(rank_by, prices, Prices(None, price_per_kwh, pue))
        _clusters(path, over, overrides, asked, top, json_)
    else:
        money = Prices(_one_price(prices), price_per_kwh, pue)
        objective = objective_of(rank_by or TIME, money)
        values = axes.read_over(over, overrides)
        options = layouts.Options(top, values, jobs, trials, objective=objective)
        _layouts(path, overrides, options, json_, write)


def _layouts(
    path: Path,
    overrides: tuple[str, ...],
    options: layouts.Options,
    json_: bool,
    write: Path | None,
) -> None:
    """The best layouts of a scenario's model."""
    if write is not None:
        check_target(write, path)
    base, batch = load_open(path, overrides, axes.FREE)
    if "training.global_batch" not in _keys(path, overrides, options.over):
        samples = f"{batch} samples a step, those of its layout"
        talk(f"{path}: no training.global_batch: {samples}")
    ranking = _ranking(base, batch, options)
    if write is not None and ranking.ranked:
        write_scenario(ranking.ranked[0].candidate.scenario, write)
        talk(f"wrote {write}")
    if json_:
        echo_json(words.to_dict(ranking, options.objective))
    else:
        show_page(words.table(ranking, options.objective))
    if not ranking.ranked:
        sys.exit(EXIT_OUTSIDE)


def _clusters(
    path: Path,
    over: tuple[str, ...],
    overrides: tuple[str, ...],
    asked: clusters.Asked,
    top: int,
    json_: bool,
) -> None:
    """The clusters that run a recorded program best."""
    grid = clusters.grid_with_places(grid_of(over, "--over"), overrides)
    count = prod(map(len, grid.values()))
    found = list(
        progress.track(clusters.places(path, grid, overrides), "clusters", count)
    )
    if json_:
        echo_json(clusters.to_dict(found, asked, top))
    else:
        show_page(clusters.table(found, asked, top))
    if not any(place.fits for place in found):
        sys.exit(EXIT_OUTSIDE)


def _refuse_layouts(path: Path, trials: int | None, write: Path | None) -> None:
    """Options that are about layouts, which a recorded program has of its own."""
    expected = "no such option: the program decides its layout"
    hint = "--over cluster.name=A,B tries clusters"
    for option, value in (("--trials", trials), ("--write", write)):
        if value is not None:
            raise misused(option, f"{value}, for {path}", expected, hint)


def _prices(text: str | None) -> dict[str, float]:
    """`2.50`, or by model of GPU `h100=2.50,h200=3.10`; "" is every other model."""
    prices: dict[str, float] = {}
    for part in (text or "").split(",") if text is not None else ():
        gpu, _, number = part.rpartition("=")
        try:
            prices[gpu.strip()] = float(number)
        except ValueError:
            prices[gpu.strip()] = -1.0
        if not 0 < prices[gpu.strip()] < float("inf"):
            expected = "a price above 0 such as 2.50, or h100=2.50,h200=3.10"
            raise misused("--price", str(text), expected)
    return prices


def _one_price(prices: dict[str, float]) -> float | None:
    if set(prices) - {""}:
        expected = "one price: layouts are searched on one cluster"
        raise misused("--price", ", ".join(prices), expected)
    return prices.get("")


def _ranking(base: Scenario, batch: int, options: layouts.Options) -> layouts.Ranking:
    with progress.count("layouts") as task:

        def tell(what: str, done: int, of: int) -> None:
            task.what, task.done, task.of = f"layouts, {what}", done, of

        return layouts.search(base, batch, options, tell)


def _keys(path: Path, overrides: Iterable[str], over: Iterable[str]) -> set[str]:
    """Keys of [training] in the file, and those of the command line."""
    opened = recipes.opened(tables_of(path), path, tuple(overrides))
    in_file = opened.tables.get("training", {})
    set_to = {override.partition("=")[0].strip() for override in overrides}
    return {f"training.{key}" for key in in_file} | set_to | set(over)
