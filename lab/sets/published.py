"""Published training steps of other people's clusters: CSV rows to scenarios, predictions, comparison.

Columns as in ``cases/published/rows.csv``; ``published_setups`` adds what the sources say in words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.formats import lora_rows
from lab.formats.csv_rows import csv_rows
from lab.formats.mlperf_scripts import with_script
from lab.formats.published_columns import count, whole
from lab.formats.published_families import family_of
from lab.formats.published_fill import complete
from lab.formats.published_flops import METRICS, step_time_of
from lab.formats.published_setups import Setup, setup_of
from lab.report.cells import cells_by_row
from lab.report.published import PART, Case, PublishedReport
from lab.report.step_noise import StepNoise
from lab.sets import step_noise
from lab.sets.published_scenarios import scenario_of
from prestep.sim import progress
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.tools.workers import Workers
from prestep.validation.sets.sets import folder_of, set_table

NEEDED = ("gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "tp", "pp")
COLUMNS = (
    "id",
    "source",
    "hardware",
    "model",
    "metric_name",
    "metric_value",
    "unit",
    *NEEDED,
    "micro_batch",
    "dp",
)
WHOLE = (
    "micro_batch",
    "dp",
)  # without these a row is incomplete; what is assumed is said
# Rows that agree in these columns ran one configuration, unless the set says otherwise.
GROUP = ("source", "hardware", "layers", "hidden", "gpus", "global_batch")


@dataclass(frozen=True)
class Run:
    """A row as a scenario with what was measured, s.

    `assumed`: what an incomplete configuration was completed with. `notes`: what else the row leaves to a default.
    `fit`: constants that were read off rows of its source. `group`: rows that are for fitting, or judged, together;
    `listed`: whether set.toml has it for fitting, None for sets that decide by a checksum. `computed`: why the source
    did not measure it.
    """

    id: str
    slice: str
    row: Mapping[str, str]
    scenario: Mapping[str, Any]
    measured: float
    assumed: str
    notes: str = ""
    fit: str = ""
    group: str = ""
    listed: bool | None = None
    computed: str = ""


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row that can be said as a scenario; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    read_rows, left_out = _rows_of(name, rows)
    runs, skips = sort(read_rows, set_table(name).get("group", GROUP))
    return report_on(name, runs, [*left_out, *skips], rows is None, jobs)


def _rows_of(
    name: str, rows: str | Path | None
) -> tuple[list[dict[str, str]], list[tuple[str, str]]]:
    """Rows of a set or of another file in its format, and (row, reason) of those that say too little."""
    path = Path(rows) if rows else folder_of(name) / "rows.csv"
    return lora_rows.read(path) if "format" in set_table(name) else (read(path), [])


def report_on(
    name: str,
    runs: Sequence[Run],
    skips: list[tuple[str, str]],
    whole: bool,
    jobs: int,
) -> PublishedReport:
    """The report of a set on these runs, and `skips` (row, reason); `whole`: they are all that the set has."""
    table, folder = set_table(name), folder_of(name)
    cases: list[Case] = []
    for run, (time, error) in zip(runs, predict_all(runs, jobs), strict=True):
        if isinstance(error, Refusal):
            skips.append((run.id, error))
        else:
            cases.append(_case(run, time, error, table))
    title, limits = table["title"], folder / "limits.toml"
    noise = _noise_of(runs, cases, table)
    return PublishedReport(
        name,
        title,
        tuple(cases),
        tuple(skips),
        whole,
        limits=limits,
        noise=noise,
    )


def _noise_of(
    runs: Sequence[Run], cases: Sequence[Case], table: Mapping[str, Any]
) -> tuple[StepNoise, ...]:
    """How much logged steps differ, of rows that are quick to predict, where the set asks for replicas."""
    replicas, most = table.get("replicas", 0), table.get("replicated_work", 0)
    by_name = {case.name: case for case in cases if not case.error}
    logged = [
        (run, spread)
        for run in runs
        if run.id in by_name and work(run) <= most
        if (spread := step_noise.measured(run.row)) is not None
    ]
    if not replicas:
        return ()
    return tuple(
        StepNoise(
            run.id,
            int(float(run.row["gpus"])),
            spread,
            step_noise.predicted(run.scenario, run.id, replicas),
            by_name[run.id].fitted,
        )
        for run, spread in progress.track(logged, "noise")
    )


def _case(run: Run, time: float, error: str, table: Mapping[str, Any]) -> Case:
    """A prediction, in the groups and with the cuts that a set.toml names."""
    part = table.get("part", PART)
    cuts = tuple(f"{name} {run.row[name]}" for name in table.get("cuts", ()))
    about = run.id, run.slice, run.group, run.measured
    told = run.assumed, run.notes, part, cuts, run.fit, run.listed, run.computed
    return Case(*(*about, time, error, *told))


def predict_all(runs: Sequence[Run], jobs: int) -> list[tuple[float, str]]:
    """The prediction of every run; runs of one scenario share theirs."""
    scenarios = [json.dumps(run.scenario, sort_keys=True) for run in runs]
    firsts = dict(zip(reversed(scenarios), reversed(runs), strict=True))
    distinct = list(firsts.values())
    made = dict(zip(firsts, _predict_distinct(distinct, jobs), strict=True))

    def of(run: Run, scenario: str) -> tuple[float, str]:
        # What is wrong names the row: another row of the scenario says it of itself.
        shared = run is firsts[scenario] or not made[scenario][1]
        return made[scenario] if shared else predict(run)

    return [of(run, scenario) for run, scenario in zip(runs, scenarios, strict=True)]


def _predict_distinct(runs: Sequence[Run], jobs: int) -> list[tuple[float, str]]:
    if jobs == 1 or len(runs) < 2:
        return list(map(predict, progress.track(runs, "rows")))
    # The longest first and one at a time, so that no worker is left alone with a long one at the end.
    order = sorted(range(len(runs)), key=lambda at: -work(runs[at]))
    with Workers(jobs) as pool:
        times = pool.map(predict, [runs[at] for at in order])
        tracked = progress.track(times, "rows", len(runs))
        by_place = dict(zip(order, tracked, strict=True))
    return [by_place[at] for at in range(len(runs))]


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file.

    Raises
    ------
    InputError
        If it cannot be read, or lacks rows or columns.
    """
    return csv_rows(path, COLUMNS, "a CSV file of training steps")


def cells_of(name: str, rows: Path | None) -> dict[str, dict[str, Any]]:
    """Returns what `lab.report.export` writes of the rows beside their times, by row."""
    return cells_by_row(_rows_of(name, rows)[0])


def sort(
    rows: Sequence[Mapping[str, str]], group: Sequence[str] = GROUP
) -> tuple[list[Run], list[tuple[str, str]]]:
    """Rows that are scenarios, grouped by some columns, and (row, reason) of those that are not."""
    runs, skips = [], []
    for row in rows:
        try:
            runs.append(run_of(row, group))
        except InputError as error:
            skips.append((row["id"], "; ".join(str(m) for m in error.mistakes)))
    return runs, skips


def run_of(row: Mapping[str, str], group: Sequence[str] = GROUP) -> Run:
    """A row as a run.

    Raises
    ------
    InputError
        Saying which columns are missing or what cannot be said as a scenario.
    """
    setup = with_script(setup_of(row), row)
    cells, filled = complete(row, setup)
    _check(cells, row["id"])
    scenario = scenario_of(cells, setup)
    parse_scenario(scenario, row["id"])
    measured = step_time_of(cells, scenario, setup.counts_recompute)
    assumed, notes = _assumptions(row, cells, setup, filled)
    name = setup.slice or row["source"]
    together = "|".join(row.get(column, "") for column in group)
    about = row["id"], name, row, scenario, measured, assumed, notes, setup.fit
    return Run(*about, together, computed=setup.computed)


def _check(cells: Mapping[str, str], where: str) -> None:
    """Refuses a row that lacks part of its configuration, or whose metric is none of ours."""
    missing = [name for name in NEEDED if not cells[name].strip()]
    if missing:
        found = f"no {', '.join(missing)}"
        raise InputError(Mistake(where, "", found, "a complete configuration"))
    metric = cells["metric_name"]
    if metric not in METRICS:
        expected = f"one of {', '.join(METRICS)}"
        raise InputError(Mistake(where, "metric_name", f'"{metric}"', expected))


def _assumptions(
    row: Mapping[str, str],
    cells: Mapping[str, str],
    setup: Setup,
    filled: Sequence[str],
) -> tuple[str, str]:
    """What a row without its whole configuration was completed with, and what else was taken by default."""
    needed = (*NEEDED, *WHOLE)
    assumed = [f"{name} assumed" for name in WHOLE if not cells[name].strip()]
    assumed += [text for text in filled if text.split()[0] in needed]
    assumed += setup.guesses
    if family := family_of(cells)[1]:
        assumed.append(family)
    notes = [text for text in filled if text.split()[0] not in needed]
    defaults = (name for name in ("ffn", "vocab") if not cells.get(name, "").strip())
    notes += [f"{name} by default" for name in defaults]
    notes += _other_hosts(cells, setup)
    notes += setup.unsaid
    return ", ".join(assumed), ", ".join(notes)


def _other_hosts(cells: Mapping[str, str], setup: Setup) -> Iterator[str]:
    """A note where the source's hosts have another number of GPUs than those of the setup."""
    gpus, nodes = count(cells, "gpus", 1), whole(cells, "nodes", 0)
    if nodes > 1 and gpus % nodes == 0 and gpus // nodes != setup.per_host:
        size = gpus // nodes
        yield f"{nodes} hosts of {size} GPUs taken as hosts of {setup.per_host}"


class Refusal(str):
    """Why a run that reads well cannot be simulated: a skipped row, not a failed one."""

    __slots__ = ()


def work(run: Run) -> float:
    """Roughly what simulating a row costs: microbatches over the stages of a pipeline."""
    t, p = run.scenario["training"], run.scenario["parallel"]
    whole = t.get("global_batch", 0) / max(1, t["micro_batch"] * p["dp"])
    return float((whole or t["microbatches"]) * p["pp"] * p.get("vpp", 1))


def predict(run: Run) -> tuple[float, str]:
    """Seconds, or why there are none: one row does not hide the others."""
    try:
        return step_time(parse_scenario(run.scenario, run.id)), ""
    except InputError as error:
        return math.nan, Refusal("; ".join(str(mistake) for mistake in error.mistakes))
    except PrestepError as error:
        return math.nan, str(error)
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return math.nan, f"{type(error).__name__}: {error}"
