"""Predict SCENARIO with every combination of values; what a folder has already is not done again."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from prestep.sim import progress
from prestep.sim.commands import _shared as shared
from prestep.sim.errors import EXIT_INPUT
from prestep.sim.extras import lazily
from prestep.sim.units import aligned, format_duration

with lazily():
    from prestep.sim import sheets, tables
    from prestep.sim.analysis import cost
    from prestep.sim.spec import load, openers
    from prestep.sim.studies import executors, ranking
    from prestep.sim.studies import grid as grids
    from prestep.sim.studies import sweep as study
    from prestep.sim.tools import catalog

GROUP = "Predict"
LONGEST = 20  # rows of the table


#: What the best run has least of.
_PRICED = shared.together(
    click.option(
        "--price",
        type=shared.POSITIVE,
        metavar="PRICE",
        help="Of a GPU for an hour, for a cost per million tokens.",
    ),
    shared.energy_prices,
    shared.rank_by,
)


@click.command(
    help=__doc__,
    epilog="Example: prestep sweep 1b.toml --grid training.micro_batch=1,2,4 --grid nvlink.bandwidth=1x,2x -o out",
)
@click.argument("scenario")
@click.option(
    "--grid",
    multiple=True,
    required=True,
    metavar="KEY=V1,V2",
    help="Values to try. May be repeated.",
)
@shared.changes
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder.",
)
@click.option(
    "--executor",
    default="processes",
    show_default=True,
    help="processes, threads, dask://FILE.",
)
@shared.processes("Runs at a time.")
@click.option(
    "--shard",
    metavar="I/N",
    help="Do the I-th of N parts of the runs, beside the others in one folder: a Slurm array.",
)
@shared.file_option(
    "--report", text="Write the table as a page (.html) or Markdown (.md)."
)
@_PRICED
@shared.of_scenario
@shared.explained
def command(
    scenario: str,
    grid: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path,
    executor: str,
    jobs: int,
    shard: str | None,
    report: Path | None,
    price: float | None,
    price_per_kwh: float | None,
    pue: float,
    rank_by: str | None,
) -> None:
    if report is not None:
        sheets.check_suffix(report)
    objective = ranking.objective_of(
        rank_by or ranking.TIME, cost.Prices(price, price_per_kwh, pue)
    )
    part = _shard(shard)
    path = catalog.find_scenario(scenario)
    values = grids.grid_of(grid)
    pool = executors.executor_of(executor, jobs)
    opener = openers.opener_of(openers.tables_of(path))
    # Mistakes of the file are told once, not for every run; the cluster of a recipe may be what is swept.
    base = None
    if not getattr(opener, "NEEDS_CLUSTER", False):
        base = load.load_scenario(path)
    runs = grids.specs(path, values, overrides)
    with progress.count("runs", len(runs)) as task:
        results = study.sweep(runs, output, pool, jobs, partial(_tell, task), part)
    if results is None:
        shared.talk(
            f"{output}: part {shard} is done; the last part to end writes the table"
        )
        return
    shared.talk(f"wrote {results}")
    rows = study.rows_of(results)
    if report is not None:
        chips = sheets.asked(base, overrides)
        _write(report, path.name, rows, objective, chips)
    _show(rows, objective)


def _shard(text: str | None) -> study.Shard | None:
    """`2/8`: the second of eight parts."""
    if text is None:
        return None
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise shared.misused(
            "--shard", text, "the number of a part and of all, such as 2/8"
        )
    return study.Shard(int(number), int(of))


def _show(rows: Sequence[study.Row], objective: ranking.Objective) -> None:
    """Prints the table; where every run was refused, ends as `run` of any of them does."""
    shared.show_page(summary(rows, objective))
    if rows and all(row["error"] for row in rows):
        sys.exit(EXIT_INPUT)


def _tell(task: progress.Task, done: int, of: int) -> None:
    """The first call says what was there before."""
    if not task.done:
        task.before = done
    task.done = done


def _write(
    report: Path,
    name: str,
    rows: Sequence[study.Row],
    objective: ranking.Objective,
    chips: Sequence[str],
) -> None:
    """The report: what was asked, the best run, and all of them in order."""
    heading, cells, notes = _table(rows, objective, len(rows))
    changed = heading.index("step time")  # before it stand the keys of the grid
    lines = [
        (
            ", ".join(map("=".join, zip(heading[:changed], row, strict=False))),
            *row[changed:],
        )
        for row in cells
    ]
    answer = "Every run was refused."
    if lines:
        answer = f"The best of {len(lines)} runs: {lines[0][0]}, {lines[0][1]} a step."
    heads = ("run", *heading[changed:])
    table = tables.Sheet("Runs, the best first", heads, lines, notes=notes)
    sheets.write(report, f"Sweep of {name}", answer, [table], chips)
    shared.talk(f"wrote {report}")


def summary(rows: Sequence[study.Row], objective: ranking.Objective) -> str:
    """The runs as a table, the best first, and how many were refused."""
    heading, cells, notes = _table(rows, objective, LONGEST)
    return "\n".join([*aligned([heading, *cells]), *notes])


def _table(
    rows: Sequence[study.Row], objective: ranking.Objective, longest: int
) -> tuple[list[str], list[list[str]], list[str]]:
    """Heads, rows of the best runs, and what is said of the others."""
    good = [row for row in rows if not row["error"]]
    refused = [row for row in rows if row["error"]]
    good.sort(key=lambda row: _score(row, objective))
    keys = [name for name in (rows[0] if rows else {}) if name.startswith("set.")]
    heading = [*(key.removeprefix("set.") for key in keys), "step time", "MFU", "fits"]
    heading += ["J/token"] if objective.needs_watts else []
    heading += ["per 1M"] if objective.priced else []
    cells = [_cells(row, keys, objective) for row in good[:longest]]
    lines = []
    if len(good) > longest:
        lines.append(f"and {len(good) - longest} {_worse(objective)}")
    if refused:
        reason = refused[0]["error"].splitlines()[0]
        lines.append(f"{len(refused)} refused, such as: {reason}")
    return heading, cells, lines


def _worse(objective: ranking.Objective) -> str:
    return (
        "slower" if objective.by == ranking.TIME else f"that take more {objective.by}"
    )


def _score(row: dict[str, Any], objective: ranking.Objective) -> float:
    """What is ranked: seconds of a step; joules or cost of a token, since runs may differ in their batch."""
    if objective.by == ranking.TIME:
        return float(row["step_time"])
    score = _of_a_token(row, objective)
    if math.isnan(
        score
    ):  # a recorded program's runs have the same batch: a step's will do
        score = objective.score(row["step_time"], row["gpus"], _watts_of(row))
    return math.inf if math.isnan(score) else score


def _of_a_token(row: dict[str, Any], objective: ranking.Objective) -> float:
    """Joules or cost of a token; nan where it is not known, as of recorded programs."""
    speed = row["tokens_per_second_per_gpu"]
    rate = math.nan if speed is None else speed * row["gpus"]
    return (
        objective.score(1.0 / rate, row["gpus"], _watts_of(row)) if rate else math.nan
    )


def _watts_of(row: study.Row) -> float:
    return math.nan if row["total_power"] is None else float(row["total_power"])


def _cells(
    row: dict[str, Any], keys: Sequence[str], objective: ranking.Objective
) -> list[str]:
    mfu = row["mfu"]
    has_mfu = mfu is not None and mfu == mfu  # not nan
    fits = {True: "yes", False: "no", None: "-"}[row["fits"]]
    values = [str(row[key]) for key in keys]
    time = format_duration(row["step_time"])
    cells = [*values, time, f"{mfu:.1%}" if has_mfu else "-", fits]
    if objective.needs_watts:
        cells.append(f"{_of_a_token(row, replace(objective, by=ranking.ENERGY)):.3g}")
    if objective.priced:
        cells.append(
            f"{1e6 * _of_a_token(row, replace(objective, by=ranking.COST)):.4g}"
        )
    return cells
