"""What `prestep search` does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from sim import files, progress
from sim.commands._shared import EXIT_OUTSIDE, echo_json, talk
from sim.spec.load import load_open
from sim.spec.sections import Scenario
from sim.studies import search as layouts
from sim.studies.search import axes, words
from sim.studies.search.scenario_file import check_target, write_scenario
from sim.tools.catalog import find_scenario


def search(
    scenario: str,
    top: int,
    over: tuple[str, ...],
    overrides: tuple[str, ...],
    price: float | None,
    trials: int | None,
    jobs: int,
    json_: bool,
    write: Path | None,
) -> None:
    path = find_scenario(scenario)
    if write is not None:
        check_target(write, path)
    options = layouts.Options(top, axes.read_over(over, overrides), jobs, trials)
    base, batch = load_open(path, overrides, axes.FREE)
    if "training.global_batch" not in _keys(path, overrides, options.over):
        samples = f"{batch} samples a step, those of its layout"
        talk(f"{path}: no training.global_batch: {samples}")
    ranking = _ranking(base, batch, options)
    if json_:
        echo_json(words.to_dict(ranking, price))
    else:
        click.echo(words.table(ranking, price))
    if not ranking.ranked:
        sys.exit(EXIT_OUTSIDE)
    if write is not None:
        write_scenario(ranking.ranked[0].candidate.scenario, write)
        talk(f"wrote {write}")


def _ranking(base: Scenario, batch: int, options: layouts.Options) -> layouts.Ranking:
    with progress.count("layouts") as task:

        def tell(what: str, done: int, of: int) -> None:
            task.what, task.done, task.of = f"layouts, {what}", done, of

        return layouts.search(base, batch, options, tell)


def _keys(path: Path, overrides: Iterable[str], over: Iterable[str]) -> set[str]:
    """Keys of [training] in the file, and those of the command line."""
    in_file = files.toml(path.read_text(encoding="utf-8")).get("training", {})
    set_to = {override.partition("=")[0].strip() for override in overrides}
    return {f"training.{key}" for key in in_file} | set_to | set(over)
