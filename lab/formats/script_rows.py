"""Rows whose configuration is a script of exports: each is read as users read theirs, by the opener of recipes.

``rows.csv`` has the columns of published steps and those of ``COLUMNS``; ``configs.json`` beside it (or the one file
that ends so) has the path of each row's script and the variables that it exports. The cluster follows from the row's
hardware (``cases/mlperf/setups.toml``): a row is `prestep run SCRIPT --cluster NAME --hosts N`, with nothing left out.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.formats.csv_rows import MeasuredStep, csv_rows
from lab.formats.published_columns import positive
from lab.formats.published_setups import setup_of
from lab.sets.published_scenarios import cluster_of
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec import openers

CONFIGS = "configs.json"
COLUMNS = (
    "id",
    "source",
    "hardware",
    "gpus",
    "nodes",
    "benchmark",
    "metric_value",
    "submitter",
    "quality",
)
#: What a row says of a variable that its script takes away.
UNSET = "(unset)"
#: Rows of this quality rest on a guess, or contradict themselves: predicted, not judged.
GUESSED = "C"
NOISY = "a guess in the configuration, or a noisy log (quality C)"


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, each with its script's path and text.

    Raises
    ------
    InputError
        If a file cannot be read, or lacks rows or columns.
    """
    rows = csv_rows(path, COLUMNS, "a CSV file of steps that scripts configure")
    configs = _configs_beside(path)
    texts = {name: _exports(entry["env"]) for name, entry in configs.items()}
    return [
        {
            **row,
            "script": texts.get(row["id"], ""),
            "script_path": str(configs.get(row["id"], {}).get("config", "")),
        }
        for row in rows
    ]


def _configs_beside(path: Path) -> Mapping[str, Mapping[str, object]]:
    files = [path.with_name(CONFIGS), *sorted(path.parent.glob(f"*{CONFIGS}"))]
    there = next((file for file in files if file.is_file()), None)
    if there is None:
        expected = f"{CONFIGS} beside {path.name}"
        raise InputError(Mistake(str(path.parent), "", "no such file", expected))
    configs: Mapping[str, Mapping[str, object]] = json.loads(there.read_text("utf-8"))
    return configs


def _exports(variables: object) -> str:
    """A script of variables, in the order in which they were resolved."""
    lines = []
    for name, value in dict(variables).items():  # type: ignore[call-overload]
        is_unset = value == UNSET
        lines.append(
            f"unset {name}" if is_unset else f"export {name}={shlex.quote(value)}"
        )
    return "\n".join(lines) + "\n"


def id_of(row: Mapping[str, str]) -> str:
    """The row's name."""
    return row["id"]


def parse_row(row: Mapping[str, str]) -> MeasuredStep:
    """A row as the scenario that its script is on its cluster.

    Raises
    ------
    InputError
        Saying what the row lacks, or what the opener refuses.
    """
    where = id_of(row)
    if not row["script"].strip():
        raise InputError(Mistake(where, "", "no script", f"one in {CONFIGS}"))
    place = cluster_of(int(positive(row, "gpus", where, "GPUs")), setup_of(row))
    chosen = [f"cluster.{key}={value}" for key, value in place.items()]
    with TemporaryDirectory() as folder:
        # The folders of a script say its benchmark; those of an earlier round are written "v5.1:path".
        path = Path(folder) / row["script_path"].rpartition(":")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row["script"], encoding="utf-8")
        try:
            made = openers.completed(openers.opened(path) or {}, path, chosen)
        except InputError as error:
            short = (one.where.rpartition("/")[2] for one in error.mistakes)
            places = zip(error.mistakes, short, strict=True)
            raise InputError(
                [replace(one, where=name) for one, name in places]
            ) from None
    return MeasuredStep(
        id=where,
        slice=row["benchmark"],
        group=f"{row['benchmark']}|{row['hardware']}|{row['submitter']}",
        tables=made.tables,
        measured=positive(row, "metric_value", where, "seconds"),
        assumed="; ".join(made.notes),
        incomplete=NOISY if row["quality"] == GUESSED else "",
    )
