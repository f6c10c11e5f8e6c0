"""Sets of measured collectives (`kind = "collectives"` in set.toml), and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lab.formats import leafspine
from lab.formats.configurations import of_collective
from lab.report.collectives import Case, CollectiveReport, Limits
from prestep.sim.errors import InputError
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.overlap_rows import Overlap
from prestep.validation.report.interface import Skip
from prestep.validation.sets.predict_collective import Compared, predict_all
from prestep.validation.sets.sets import folder_of, set_table


@dataclass(frozen=True)
class CollectiveSet:
    """A set as its set.toml has it.

    Attributes
    ----------
    folder : Path
        Where the rows lie: the set's own folder, or that of its `base`.
    files : tuple of str
        Files of rows.
    fitted : tuple of str
        Files of the folder that constants were fitted to: every row that is not held out.
    fitted_cases : tuple of str
        Further cases that some constant was taken from; `*` stands for any text.
    """

    name: str
    title: str
    folder: Path
    files: tuple[str, ...]
    limits: Limits
    fitted: tuple[str, ...] = ()
    fitted_cases: tuple[str, ...] = ()

    def fitted_configurations(self) -> frozenset[tuple[Any, ...]]:
        """Configurations that constants were fitted to: rows run again elsewhere are no less fitted."""
        rows = [
            row
            for file in self.fitted
            for row in leafspine.read_lines(self.folder / file)[0]
        ]
        return frozenset(
            of_collective(row) for row in rows if not row.held_out and not row.skip
        )

    def taken(self, row: Row, configurations: frozenset[tuple[Any, ...]]) -> bool:
        """Whether some constant was taken from a row; `configurations` as `fitted_configurations` has them."""
        named = any(fnmatchcase(row.name, one) for one in self.fitted_cases)
        return row.fitted or of_collective(row) in configurations or named


def load(name: str) -> CollectiveSet:
    """The set of a name.

    Raises
    ------
    InputError
        If there is none, or it is of another kind.
    """
    table = set_table(name)
    folder = folder_of(table.get("base", name))
    limits = Limits.read(_limits_file(name, table))
    fitted, cases = (tuple(table.get(key, ())) for key in ("fitted", "fitted_cases"))
    return CollectiveSet(
        name, table["title"], folder, tuple(table["rows"]), limits, fitted, cases
    )


def _limits_file(name: str, table: Mapping[str, Any]) -> Path:
    """The file of a set's limits: its own, or the one that its set.toml names."""
    path: Path = folder_of(name).parent / table.get("limits", f"{name}/limits.toml")
    if not path.is_file():
        where = str(folder_of(name) / "set.toml")
        expected = "limits.toml beside it, or limits = the file of another set"
        hint = 'such as "collectives/limits.toml"'
        raise InputError.of(where, "limits", f"no {path.name}", expected, hint)
    return path


#: Reads the rows of a file: collectives alone, and beside kernels.
Read = Callable[[Path], tuple[list[Row], list[Overlap]]]


def validate_set(
    name: str,
    rows: str | Path | None = None,
    jobs: int = 1,
    read: Read = leafspine.read_lines,
) -> CollectiveReport:
    """Predicts the rows of a set, or other rows under its limits, and compares.

    Parameters
    ----------
    name
        A set of kind "collectives".
    rows
        A file of other rows in the set's format.
    jobs
        Not used: predicting a thousand rows takes seconds.
    read
        Reads a file of the set's format; without it, JSON lines of the harness.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    chosen = load(name)
    cases: list[Case] = []
    skips: list[Skip] = []
    configurations = chosen.fitted_configurations()
    for path in (
        [chosen.folder / file for file in chosen.files]
        if rows is None
        else [Path(rows)]
    ):
        alone, beside = read(path)
        if not alone and not beside and rows is not None:
            found, expected = (
                "no row of a collective",
                "rows of kind collective or overlap",
            )
            raise InputError.of(str(path), "", found, expected)
        for one in predict_all(alone, beside):
            if one.skip:
                skips.append(Skip(one.name, one.row.where, one.skip))
            else:
                cases.append(_case(one, chosen, configurations))
    return CollectiveReport(
        name,
        chosen.title if rows is None else "",
        tuple(cases),
        chosen.limits,
        tuple(skips),
    )


def _case(
    one: Compared, chosen: CollectiveSet, configurations: frozenset[tuple[Any, ...]]
) -> Case:
    """A row beside its prediction; no constant is taken from rows beside kernels."""
    row = one.row
    return Case(
        one.name,
        row.where,
        one.group,
        row.op,
        row.ranks,
        row.size,
        one.measured,
        one.prediction,
        isinstance(row, Row) and chosen.taken(row, configurations),
        row.ignored if isinstance(row, Row) else (),
    )
