"""Sets of single kernels (`kind = "kernels"` in set.toml): packaged tables of libraries at shapes that they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.formats import library_rows
from lab.formats.library_families import FAMILIES
from lab.formats.packaged import WHO, libraries, library_table
from prestep.sim import progress
from prestep.sim.analysis.json_text import finite
from prestep.sim.costs import load_gpu
from prestep.sim.costs.library_families import Family
from prestep.sim.costs.library_table import Library
from prestep.validation.report.gate import Check, rows_check
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.sets import asked

HEAD = (
    "kernels",
    "GPU",
    "format",
    "library",
    "kernel",
    "n",
    "median",
    "90th percentile",
    "bias",
)


@dataclass(frozen=True)
class Part:
    """Kernels of one library: sizes "AxBxC", seconds measured and predicted."""

    family: Family
    library: Library
    shapes: Sequence[str]
    measured: np.ndarray
    predicted: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Signed, as shares of the measured time."""
        errors: np.ndarray = self.predicted / self.measured - 1.0
        return errors

    @property
    def group(self) -> str:
        """What limits are judged of."""
        return f"{self.family.name} in {self.library.dtype}"

    @property
    def names(self) -> list[str]:
        who = self.library
        names = (self.family.name, who.gpu, who.dtype, who.source, who.kernel)
        where = "/".join(filter(None, (*names, who.variant)))
        return [f"{where}/{shape}" for shape in self.shapes]

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of the table of libraries."""
        who, sizes = self.library, np.abs(self.errors)
        kernel = " ".join(filter(None, (who.kernel, who.variant)))
        return (
            *(self.family.name, who.gpu, who.dtype, who.source, kernel),
            str(len(sizes)),
            f"{np.median(sizes):.1%}",
            f"{np.quantile(sizes, 0.9):.1%}",
            f"{self.errors.mean():+.1%}",
        )


@dataclass(frozen=True)
class KernelReport:
    """Every library's kernels against its table (see `prestep.validation.report.interface.Report`).

    Attributes
    ----------
    limits
        On the median and the 90th percentile of the absolute error in a format, by family.
    left_out
        How many rows were not compared, by reason.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    limits: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, int]
    unit: str = "kernels"

    def _parts_of(self, group: str) -> list[Part]:
        return [part for part in self.parts if part.group == group]

    @property
    def _groups(self) -> list[str]:
        """Each once, in the order of the parts."""
        return [*dict.fromkeys(part.group for part in self.parts)]

    @property
    def checks(self) -> tuple[Check, ...]:
        judged = sum(len(part.shapes) for part in self.parts)
        checks = [rows_check(judged, self.left_out)]
        for group in self._groups:
            checks += self._checks_of(group)
        return tuple(checks)

    def _checks_of(self, group: str) -> tuple[Check, Check]:
        parts = self._parts_of(group)
        sizes = np.abs(np.concatenate([part.errors for part in parts]))
        limits = self.limits[parts[0].family.name]
        half, most = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
        return (
            Check(f"{group}: median error", half, limits["median"]),
            Check(f"{group}: 90th percentile", most, limits["ninetieth"]),
        )

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def groups(self) -> Mapping[str, Errors]:
        return {group: _errors(self._parts_of(group)) for group in self._groups}

    @property
    def case_tables(self) -> Sequence[Table]:
        rows = [part.cells for part in self.parts]
        return (Table("Absolute error at shapes that no table has", HEAD, rows),)

    @property
    def points(self) -> Sequence[Point]:
        return tuple(
            Point(name, part.group, float(measured), float(predicted), False)
            for part in self.parts
            for name, measured, predicted in zip(
                part.names, part.measured, part.predicted, strict=True
            )
        )

    @property
    def skips(self) -> Sequence[Skip]:
        return tuple(
            Skip(f"{count} rows", self.name, reason)
            for reason, count in self.left_out.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Seconds; errors as shares."""
        report = {
            "set": self.name,
            "title": self.title,
            "passed": self.passed,
            "n": sum(len(part.shapes) for part in self.parts),
            "left_out": dict(self.left_out),
            "checks": [check.to_json() for check in self.checks],
            "groups": {name: each.to_json() for name, each in self.groups.items()},
            "cases": [_case(point) for point in self.points],
        }
        return dict(finite(report))


def _errors(parts: Sequence[Part]) -> Errors:
    return errors_of(
        [
            pair
            for part in parts
            for pair in zip(part.names, part.errors.tolist(), strict=True)
        ]
    )


def _case(point: Point) -> dict[str, Any]:
    return {
        "id": point.name,
        "slice": point.group,
        "measured": point.measured,
        "predicted": point.predicted,
        "signed_error": point.predicted / point.measured - 1.0,
    }


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> KernelReport:
    """Predicts the set's kernels, or those of a file in the columns of aiconfigurator; `jobs` is not used.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    table, paths, title = asked(name, rows)
    left_out: Counter[str] = Counter()
    chosen = [
        (family, library, frame)
        for family, every in map(
            _set_file if rows is None else library_rows.read, paths
        )
        for library, frame in _by_library(every)
        if not (reason := _reason(family, library))
        or left_out.update({reason: len(frame)})
    ]
    parts = []
    for family, library, frame in progress.track(chosen, "libraries"):
        unseen = _unseen(family, library, frame)
        left_out["shapes that the tables have"] += len(frame) - len(unseen)
        if len(unseen):
            parts.append(_compared(family, library, unseen))
    return KernelReport(name, title, tuple(parts), table["limits"], +left_out)


def _set_file(path: Path) -> tuple[Family, pd.DataFrame]:
    """A file of the set's own: the family is its name."""
    (family,) = (each for each in FAMILIES if each.name == path.stem)
    return family, pd.read_parquet(path)


def _by_library(rows: pd.DataFrame) -> Iterator[tuple[Library, pd.DataFrame]]:
    for key, frame in rows.groupby(WHO, observed=True, dropna=False):
        yield Library(*map(str, key)), frame


def _reason(family: Family, library: Library) -> str:
    """Why a library is not compared; "" if it is."""
    if library in libraries(family):
        return ""
    if library.gpu not in library_rows.GPUS.values():
        return "of GPUs without tables"
    if library.dtype not in library_rows.DTYPES.values():
        return "in formats without tables"
    return "of libraries without tables (older versions)"


def _unseen(family: Family, library: Library, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose shapes the library's table lacks."""
    sizes = list(family.sizes)
    measured = pd.MultiIndex.from_frame(libraries(family)[library][sizes])
    return frame[~pd.MultiIndex.from_frame(frame[sizes]).isin(measured)]


def _compared(family: Family, library: Library, frame: pd.DataFrame) -> Part:
    model = library_table(family, library, load_gpu(library.gpu).roofline)
    sizes = frame[list(family.sizes)].to_numpy()
    return Part(
        family,
        library,
        ["x".join(map(str, shape)) for shape in sizes],
        frame["us"].to_numpy(dtype=float) * 1e-6,
        model.seconds(sizes),
    )
