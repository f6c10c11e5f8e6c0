"""Sets of measurements: a folder of `validation/cases` with a set.toml that names its files and its kind.

Every kind has a module with `validate_set(name, rows, jobs)` that answers with a `validation.report.interface.Report`.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError, unknown
from validation.formats.rows import Row, read_rows
from validation.report.gate import Tolerances
from validation.report.interface import Report

CASES = Path(__file__).parents[1] / "cases"
#: What a set of steps is held to that states no tolerances of its own.
USUAL_LIMITS = CASES / "h200" / "tolerances.toml"
STEPS = "steps"
# The module of each kind of set; set.toml says `kind`, steps where it does not.
KINDS = {
    STEPS: "validation.sets.steps",
    "collectives": "validation.sets.collectives",
    "choices": "validation.sets.choices",
    "traces": "validation.sets.traces",
    "published": "validation.sets.published",
    "checkpoint": "validation.sets.checkpoint",
    "probes": "validation.sets.probes",
}


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
    ratios : bool
        Whether ratios of rows to the same step without a change are judged too; `base_files` has more rows for them.
    """

    name: str
    title: str
    folder: Path
    files: tuple[str, ...]
    limits: Path
    ratios: bool = False
    base_files: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """All rows of the set, those without a measurement too."""
        return [row for file in self.files for row in read_rows(self.folder / file)]

    @property
    def tolerances(self) -> Tolerances:
        return Tolerances.read(self.limits)

    @property
    def bases(self) -> list[Row]:
        """Rows with which ratios may be formed: the set's own, and those that are there for nothing else."""
        return [
            row
            for file in (*self.files, *self.base_files)
            for row in read_rows(self.folder / file)
        ]

    @property
    def fitted(self) -> Collection[str]:
        """Configurations that some constant was taken from: rows run again elsewhere are no less fitted.

        Raises
        ------
        InputError
            If fitted.toml names a row that no set of the folder has.
        """
        path = self.folder / "fitted.toml"
        if not path.exists():
            return ()  # nobody took a constant from any of the rows
        constants: list[dict[str, Any]] = tomllib.loads(
            path.read_text(encoding="utf-8")
        )["constant"]
        known = {
            row.name: row.configuration
            for file in _files_beside(self.folder)
            for row in read_rows(file)
        }
        used = {row for constant in constants for row in constant.get("rows", ())}
        if strangers := sorted(used - known.keys()):
            raise InputError(
                [unknown(str(path), "rows", row, known) for row in strangers]
            )
        whole = {
            file for constant in constants for file in constant.get("steps_of", ())
        }
        return {known[row] for row in used} | {
            row.configuration for f in whole for row in read_rows(self.folder / f)
        }


def set_names(kind: str | None = None) -> list[str]:
    """Names of the sets that `prestep validate` takes, sorted; of one kind, or all."""
    names = sorted(path.parent.name for path in CASES.glob("*/set.toml"))
    return [name for name in names if kind in (None, kind_of(name))]


def told(name: str) -> dict[str, Any]:
    """The set.toml of a set, or of the one it is another name of.

    Raises
    ------
    InputError
        If there is none.
    """
    path = CASES / name / "set.toml"
    if not path.is_file():
        raise InputError(unknown("validate", "", name, set_names()))
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return told(table["alias"]) if "alias" in table else table


def kind_of(name: str) -> str:
    """What a set measures: steps, collectives, or choices of NCCL."""
    kind = str(told(name).get("kind", STEPS))
    if kind not in KINDS:
        raise InputError(unknown(f"{name}/set.toml", "kind", kind, KINDS))
    return kind


def validate(name: str, rows: str | Path | None = None, jobs: int = 1) -> Report:
    """Predicts a set of any kind, or other rows in the format that the set came in, and compares.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    module = importlib.import_module(KINDS[kind_of(name)])
    report: Report = module.validate_set(name, rows=rows, jobs=jobs)
    return report


def asked(name: str, rows: str | Path | None) -> tuple[dict[str, Any], list[Path], str]:
    """The set.toml of a set, its files of rows or the one named instead, and the title; "" for rows of another's."""
    table = told(name)
    if rows is not None:
        return table, [Path(rows)], ""
    return table, [CASES / name / file for file in table["rows"]], table["title"]


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
    table = told(name)
    folder = CASES / table.get("base", name)
    limits = (
        CASES / table["limits"] if "limits" in table else folder / "tolerances.toml"
    )
    if not limits.exists() and "limits" not in table:
        limits = USUAL_LIMITS
    rows, bases = tuple(table["rows"]), tuple(table.get("bases", ()))
    return MeasuredSet(
        name, table["title"], folder, rows, limits, "bases" in table, bases
    )


def _files_beside(folder: Path) -> list[Path]:
    """Files of training steps that some set takes from the folder."""
    sets = [load_set(name) for name in set_names(STEPS)]
    return [folder / file for one in sets if one.folder == folder for file in one.files]
