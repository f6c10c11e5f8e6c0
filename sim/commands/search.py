"""The command `prestep search`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from sim.commands._shared import (
    EXIT_OUTSIDE,
    as_json,
    changes,
    echo_json,
    explained,
    file_option,
    talk,
)


@click.command(
    epilog="Example: prestep search 8b.toml --over parallel.tp=1,2,4,8 --over training.recompute=none --price 2.50 "
    "--write best.toml. Exit code 1: no layout fits."
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
@changes
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    help="Of a GPU for an hour, for a cost per token.",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Look at so many layouts only, chosen by optuna.",
)
@click.option(
    "--jobs", default=2, show_default=True, type=click.IntRange(1), help="Processes."
)
@as_json
@file_option(
    "--write", text="Write the best layout as a scenario that `prestep run` takes."
)
@explained
def command(
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
    """Find the fastest layouts of SCENARIO's model, cluster and global batch that fit in memory.

    What the file says of the layout does not count; --set pins a key of it, --over says which values to try.
    """
    from sim import progress
    from sim.spec.load import load_open
    from sim.studies import search
    from sim.studies.search import axes, words
    from sim.studies.search.scenario_file import check_target, write_scenario
    from sim.tools.catalog import find_scenario

    path = find_scenario(scenario)
    if write is not None:
        check_target(write, path)
    options = search.Options(top, axes.read_over(over, overrides), jobs, trials)
    base, batch = load_open(path, overrides, axes.FREE)
    if _says_no_batch(path, overrides, options.over):
        talk(
            f"{path}: no training.global_batch: {batch} samples a step, those of its layout"
        )
    with progress.count("layouts") as task:

        def tell(what: str, done: int, of: int) -> None:
            task.what, task.done, task.of = f"layouts, {what}", done, of

        found = search.search(base, batch, options, tell)
    if json_:
        echo_json(words.to_dict(found, price))
    else:
        click.echo(words.table(found, price))
    if not found.ranked:
        sys.exit(EXIT_OUTSIDE)
    if write is not None:
        write_scenario(found.ranked[0].candidate.scenario, write)
        talk(f"wrote {write}")


def _says_no_batch(
    path: Path, overrides: tuple[str, ...], over: Mapping[str, object]
) -> bool:
    """Whether neither the file nor the command line says how many samples a step has."""
    from sim import files

    said = files.toml(path.read_text(encoding="utf-8")).get("training", {})
    told = [item.partition("=")[0].strip() for item in overrides]
    return "training.global_batch" not in [
        *told,
        *over,
        *(f"training.{key}" for key in said),
    ]
