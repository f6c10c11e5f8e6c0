"""Sets of measured steps: a folder of `validation/cases` with a set.toml that names its files."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError, unknown
from validation.gate import Tolerances
from validation.rows import Row, read_rows

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class MeasuredSet:
    """A set as its set.toml has it.

    Attributes
    ----------
    folder : Path
        Where the rows, `fitted.toml` and `tolerances.toml` lie: the set's own folder, or that of its `base`.
    files : tuple of str
        Files of rows, in the order to report.
    """

    name: str
    title: str
    folder: Path
    files: tuple[str, ...]

    @property
    def rows(self) -> list[Row]:
        """All rows of the set, those without a measurement too."""
        return [row for file in self.files for row in read_rows(self.folder / file)]

    @property
    def tolerances(self) -> Tolerances:
        return Tolerances.read(self.folder / "tolerances.toml")

    @property
    def fitted(self) -> Collection[str]:
        """Configurations that some constant was taken from: rows run again elsewhere are no less fitted.

        Raises
        ------
        InputError
            If fitted.toml names a row that no set of the folder has.
        """
        path = self.folder / "fitted.toml"
        constants: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["constant"]
        known = {row.name: row.configuration for file in _files_beside(self.folder) for row in read_rows(file)}
        used = {row for constant in constants for row in constant.get("rows", ())}
        if strangers := sorted(used - known.keys()):
            raise InputError([unknown(str(path), "rows", row, known) for row in strangers])
        whole = {file for constant in constants for file in constant.get("steps_of", ())}
        return {known[row] for row in used} | {row.configuration for f in whole for row in read_rows(self.folder / f)}


def set_names() -> list[str]:
    """Names of the sets that `prestep validate` takes, sorted."""
    return sorted(path.parent.name for path in CASES.glob("*/set.toml"))


def load_set(name: str) -> MeasuredSet:
    """The set of a name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in set_names():
        raise InputError(unknown("validate", "", name, set_names()))
    told = tomllib.loads((CASES / name / "set.toml").read_text(encoding="utf-8"))
    return MeasuredSet(name, told["title"], CASES / told.get("base", name), tuple(told["rows"]))


def _files_beside(folder: Path) -> list[Path]:
    """Files of training steps that some set takes from the folder."""
    sets = [load_set(name) for name in set_names()]
    return [folder / file for one in sets if one.folder == folder for file in one.files]
