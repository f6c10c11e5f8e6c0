"""Sets of training steps as their set.toml has them: rows, limits, and which rows constants were taken from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import CASES
from lab.formats.configurations import of_step
from lab.report.tolerances import Tolerances
from lab.sets.kinds import STEPS
from prestep.sim import schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Items, Table, Text
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.sets.sets import folder_of, kind_of, set_names, set_table

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
        configurations = {
            row.name: of_step(row)
            for file in _files_beside(self.folder)
            for row in read_rows(file)
        }
        used = {row for one in constants for row in one.get("rows", ())}
        whole = {file for one in constants for file in one.get("steps_of", ())}
        files = [file.name for file in self.folder.glob("*.jsonl")]
        wrong = [
            *(
                unknown(str(path), "rows", row, configurations)
                for row in sorted(used - {*configurations})
            ),
            *(
                unknown(str(path), "steps_of", file, files)
                for file in sorted(whole - {*files})
            ),
        ]
        InputError.check(wrong)
        return {configurations[row] for row in used} | {
            of_step(row) for f in whole for row in read_rows(self.folder / f)
        }


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
