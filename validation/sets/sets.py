"""Sets of measurements: folders with a set.toml that names their files and their kind
(`prestep.validation.sets.sources`).

Every kind has a module with `validate_set(name, rows, jobs)` that answers with a
`prestep.validation.report.interface.Report`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Items, Table, Text
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.report.gate import Tolerances
from prestep.validation.report.interface import Report
from prestep.validation.sets.kinds import STEPS
from prestep.validation.sets.sources import (
    CASES,
    folders,
    kinds,
    module_of,
    read_set,
    sources,
)

#: What a set of steps is held to that states no tolerances of its own.
USUAL_LIMITS = CASES / "h200" / "tolerances.toml"
#: What a fitted.toml may say, which lies beside the rows: of each constant the file that has it, its name, what of the
#: rows was used, rows by name, files of the folder of which all rows were used, and measurements that are no steps.
CONSTANT = Table(
    {
        "file": Text(),
        "name": Text(),
        "used": Text(("traces", "steps", "memory", "times")),
        **dict.fromkeys(("rows", "steps_of", "other"), Items(Text())),
    },
    needed=("file", "name", "used"),
)
FITTED = Table({"constant": Items(CONSTANT)}, needed=("constant",))


@dataclass(frozen=True)
class MeasuredSet:
    """A set as its set.toml has it.

    Attributes
    ----------
    folder : Path
        Where the rows, `fitted.toml` and `tolerances.toml` lie: the set's own folder, or that of its `base`.
    files : tuple of str
        Files of rows, in the order to report.
    limits : Path
        Its tolerances: the folder's, or its own where set.toml names them; without either those of h200.
    cluster : mapping
        Keys of [cluster] that say where rows were measured that do not say it themselves; empty: on the H200's host.
    """

    name: str
    title: str
    folder: Path
    files: tuple[str, ...]
    limits: Path
    cluster: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """All rows of the set, those without a measurement too."""
        return [row for file in self.files for row in read_rows(self.folder / file)]

    @property
    def tolerances(self) -> Tolerances:
        return Tolerances.read(self.limits)

    @property
    def fitted(self) -> Collection[str]:
        """Configurations that some constant was taken from: rows run again elsewhere are no less fitted.

        Raises
        ------
        InputError
            If fitted.toml has mistakes, or names rows that no set of the folder has, or files that are not there.
        """
        path = self.folder / "fitted.toml"
        if not path.exists():
            return ()  # nobody took a constant from any of the rows
        constants = schema.read(path, FITTED, "a fitted.toml")["constant"]
        known = {
            row.name: row.configuration
            for file in _files_beside(self.folder)
            for row in read_rows(file)
        }
        used = {row for one in constants for row in one.get("rows", ())}
        whole = {file for one in constants for file in one.get("steps_of", ())}
        files = [file.name for file in self.folder.glob("*.jsonl")]
        wrong = [
            *(
                unknown(str(path), "rows", row, known)
                for row in sorted(used - {*known})
            ),
            *(
                unknown(str(path), "steps_of", file, files)
                for file in sorted(whole - {*files})
            ),
        ]
        InputError.check(wrong)
        return {known[row] for row in used} | {
            row.configuration for f in whole for row in read_rows(self.folder / f)
        }


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
            more = "other distributions, such as the repository's lab/, bring more sets"
            hint = "; ".join(filter(None, (mistake.hint, more)))
            mistake = replace(mistake, hint=hint)
        raise InputError(mistake)
    return paths[name]


def kind_of(name: str) -> str:
    """What a set measures, one of `prestep.validation.sets.sources.kinds`."""
    return str(set_table(name).get("kind", STEPS))


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


def load_set(name: str) -> MeasuredSet:
    """The set of steps of a name.

    Raises
    ------
    InputError
        If there is none, or it is of another kind.
    """
    if kind_of(name) != STEPS:
        raise InputError(
            unknown("validate", "", name, set_names(STEPS), "a set of training steps:")
        )
    table = set_table(name)
    folder = folder_of(table.get("base", name))
    limits = (
        folder.parent / table["limits"]
        if "limits" in table
        else folder / "tolerances.toml"
    )
    if not limits.exists() and "limits" not in table:
        limits = USUAL_LIMITS
    rows, where = tuple(table["rows"]), table.get("cluster", {})
    return MeasuredSet(name, table["title"], folder, rows, limits, where)


def _files_beside(folder: Path) -> list[Path]:
    """Files of training steps that some set takes from the folder."""
    sets = [load_set(name) for name in set_names(STEPS)]
    return [folder / file for one in sets if one.folder == folder for file in one.files]
