"""Find the fastest layouts of SCENARIO's model, cluster and global batch that fit in memory.

What the file says of the layout does not count; --set pins a key of it, --over says which values to try.

Of a recorded program (.capture) the layout is its own: the clusters that run it fastest, or cheapest with --price;
one for every GPU, or those of --over cluster.name=A,B.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

import click

from prestep.sim import progress
from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily
from prestep.sim.units import format_duration

with lazily():
    from prestep.sim import sheets
    from prestep.sim.analysis import cost
    from prestep.sim.spec import load, openers, sections
    from prestep.sim.studies import grid, ranking
    from prestep.sim.studies import search as layouts
    from prestep.sim.studies.search import axes, clusters, space, words
    from prestep.sim.studies.search import scenario_file as best_file
    from prestep.sim.tools import catalog
    from prestep.workloads.models import model as models

GROUP = "Predict"


#: How much is looked at, and what comes of it.
_EFFORT = shared.together(
    click.option(
        "--trials",
        type=click.IntRange(1),
        help="Look at so many layouts only, chosen by optuna.",
    ),
    shared.processes("Processes."),
    shared.as_json,
    shared.file_option(
        "--report", text="Write the ranking as a page (.html) or Markdown (.md)."
    ),
    shared.file_option(
        "--write", text="Write the best layout as a scenario that `prestep run` takes."
    ),
)


@click.command(
    help=__doc__,
    epilog="Example: prestep search 8b.toml --over parallel.tp=1,2,4,8 --over training.recompute=none --price 2.50 "
    "--write best.toml. Exit code 1: no layout fits.",
)
@click.argument("scenario")
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Layouts to rank.",
)
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Values to try for a key. May be repeated.",
)
@shared.changes
@click.option(
    "--price",
    metavar="PRICE",
    help="Of a GPU for an hour, for a cost per token; of several GPUs h100=2.50,h200=3.10.",
)
@shared.energy_prices
@shared.rank_by
@_EFFORT
@shared.of_scenario
@shared.explained
def command(
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
    report: Path | None,
    write: Path | None,
) -> None:
    if report is not None:
        sheets.check_suffix(report)
    path, prices = catalog.find_scenario(scenario), _prices(price)
    energy = cost.Prices(None, price_per_kwh, pue)
    if models.is_program(path):
        _refuse_layouts(path, trials, write, report)
        asked = clusters.asked(rank_by, prices, energy)
        _clusters(path, over, overrides, asked, top, json_)
    else:
        money = replace(energy, gpu_hour=_one_price(prices))
        objective = ranking.objective_of(rank_by or ranking.TIME, money)
        values = axes.read_over(over, overrides)
        options = layouts.Options(top, values, jobs, trials, objective=objective)
        _layouts(path, overrides, options, json_, write, report)


def _layouts(
    path: Path,
    overrides: tuple[str, ...],
    options: layouts.Options,
    json_: bool,
    write: Path | None,
    report: Path | None,
) -> None:
    """The best layouts of a scenario's model."""
    if write is not None:
        best_file.check_target(write, path)
    base, batch = load.load_open(path, overrides, axes.FREE)
    if "training.global_batch" not in _keys(path, overrides, options.over):
        samples = f"{batch} samples a step, those of its layout"
        shared.talk(f"{path}: no training.global_batch: {samples}")
    best = _ranking(base, batch, options)
    if write is not None and best.ranked:
        best_file.write_scenario(best.ranked[0].candidate.scenario, write)
        shared.talk(f"wrote {write}")
    objective = options.objective
    if report is not None:
        answer, tables = words.sheets(best, objective)
        chips = sheets.asked(base, overrides, batch)
        sheets.write(report, f"Search of {path.name}", answer, tables, chips)
        shared.talk(f"wrote {report}")
    shared.show_result(
        json_,
        lambda: words.to_dict(best, objective),
        lambda: words.table(best, objective),
    )
    if not best.ranked:
        sys.exit(shared.EXIT_OUTSIDE)


def _clusters(
    path: Path,
    over: tuple[str, ...],
    overrides: tuple[str, ...],
    asked: clusters.Asked,
    top: int,
    json_: bool,
) -> None:
    """The clusters that run a recorded program best."""
    values = clusters.grid_with_places(grid.grid_of(over, "--over"), overrides)
    count = prod(map(len, values.values()))
    places = list(
        progress.track(clusters.places(path, values, overrides), "clusters", count)
    )
    shared.show_result(
        json_,
        lambda: clusters.to_dict(places, asked, top),
        lambda: clusters.table(places, asked, top),
    )
    if not any(place.fits for place in places):
        sys.exit(shared.EXIT_OUTSIDE)


def _refuse_layouts(
    path: Path, trials: int | None, write: Path | None, report: Path | None
) -> None:
    """Options that are about layouts, which a recorded program has of its own."""
    expected = "no such option: the program decides its layout"
    hint = "--over cluster.name=A,B tries clusters"
    for option, value in (
        ("--trials", trials),
        ("--write", write),
        ("--report", report),
    ):
        if value is not None:
            raise shared.misused(option, f"{value}, for {path}", expected, hint)


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
            raise shared.misused("--price", str(text), expected)
    return prices


def _one_price(prices: dict[str, float]) -> float | None:
    if set(prices) - {""}:
        expected = "one price: layouts are searched on one cluster"
        raise shared.misused("--price", ", ".join(prices), expected)
    return prices.get("")


def _ranking(
    base: sections.Scenario, batch: int, options: layouts.Options
) -> layouts.Ranking:
    with progress.count("layouts") as task:

        def tell(what: str, done: int, of: int) -> None:
            task.what, task.done, task.of = f"layouts, {what}", done, of

        return layouts.search(base, batch, replace(options, better=_tell), tell)


def _tell(candidate: space.Candidate, seconds: float) -> None:
    """A layout that is the best so far, on a terminal: somebody waits there."""
    if sys.stderr.isatty():
        progress.clear()
        shared.talk(
            f"so far {words.layout_of(candidate)}, {format_duration(seconds)} a step"
        )


def _keys(path: Path, overrides: Iterable[str], over: Iterable[str]) -> set[str]:
    """Keys of [training] in the file, and those of the command line."""
    tables = openers.tables_of(path)
    in_file = openers.completed(tables, path, tuple(overrides)).tables.get(
        "training", {}
    )
    set_to = {override.partition("=")[0].strip() for override in overrides}
    return {f"training.{key}" for key in in_file} | set_to | set(over)
