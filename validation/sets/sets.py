"""Sets of measurements: folders with a set.toml that names their files and their kind
(`prestep.validation.sets.sources`).

Every kind has a module with `validate_set(name, rows, jobs)` that answers with a
`prestep.validation.report.interface.Report`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, unknown
from prestep.validation.report.interface import Report
from prestep.validation.sets.kinds import USUAL
from prestep.validation.sets.sources import (
    folders,
    kinds,
    module_of,
    read_set,
    sources,
)


def set_names(kind: str | None = None) -> list[str]:
    """Names of the sets that `prestep validate` takes, sorted; of one kind, or all."""
    return [name for name in folders() if kind in (None, kind_of(name))]


def set_table(name: str) -> dict[str, Any]:
    """The set.toml of a set.

    Raises
    ------
    InputError
        If there is none, or with every mistake in it.
    """
    return read_set(folder_of(name) / "set.toml")


def folder_of(name: str) -> Path:
    """Returns the folder with the files of a set.

    Raises
    ------
    InputError
        If there is none.
    """
    paths = folders()
    if name not in paths:
        mistake = unknown("validate", "", name, paths, show="prestep list sets")
        if len(sources()) == 1:
            more = "a checkout's sets need `pip install -e . -e lab` in it"
            hint = "; ".join(filter(None, (mistake.hint, more)))
            mistake = replace(mistake, hint=hint)
        raise InputError(mistake)
    return paths[name]


def kind_of(name: str) -> str:
    """What a set measures, one of `prestep.validation.sets.sources.kinds`."""
    return str(set_table(name).get("kind", USUAL))


def validate(
    name: str, rows: str | Path | None = None, jobs: int = 1, cluster: str | None = None
) -> Report:
    """Predicts a set of any kind, or other rows in the format that the set came in, and compares.

    `cluster`: where programs or steps were measured whose file or rows do not say it.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    module = module_of(kind_of(name))
    where = {} if cluster is None else {"cluster": _of_rows(name, cluster)}
    report: Report = module.validate_set(name, rows=rows, jobs=jobs, **where)
    return report


def _of_rows(name: str, cluster: str) -> str:
    if not kinds()[kind_of(name)].placed:
        expected = "nothing: its rows say where they were measured"
        raise InputError.of(name, "--cluster", cluster, expected)
    return cluster


def asked(name: str, rows: str | Path | None) -> tuple[dict[str, Any], list[Path], str]:
    """The set.toml of a set, its files of rows or the one named instead, and the title; "" for rows of another's."""
    table = set_table(name)
    if rows is not None:
        return table, [Path(rows)], ""
    return table, [folder_of(name) / file for file in table["rows"]], table["title"]
