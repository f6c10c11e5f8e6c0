"""Sets of single kernels (`kind = "kernels"` in set.toml): packaged tables of libraries at shapes that they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sim import progress
from sim.costs import load_gpu
from sim.costs.libraries import Library, product_table, products
from validation.formats import library_rows
from validation.report.gate import Check, rows_check
from validation.report.interface import Point, Skip, Table
from validation.report.summary import Errors, errors_of
from validation.sets.sets import asked

HEAD = ("GPU", "format", "library", "kernel", "n", "median", "90th percentile", "bias")
WHO = ["gpu", "dtype", "source", "kernel"]


@dataclass(frozen=True)
class Products:
    """Products of one library: shapes "MxNxK", seconds measured and predicted."""

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
    def names(self) -> list[str]:
        who = self.library
        return [f"{who.gpu}/{who.dtype}/{who.source}/{shape}" for shape in self.shapes]


@dataclass(frozen=True)
class KernelReport:
    """Every library's products against its table (see `validation.report.interface.Report`).

    Attributes
    ----------
    limits
        On the median and the 90th percentile of the absolute error of a format.
    left_out
        How many rows were not compared, by reason.
    """

    name: str
    title: str
    parts: tuple[Products, ...]
    limits: tuple[float, float]
    left_out: Mapping[str, int]
    unit: str = "products"

    def _of(self, dtype: str) -> np.ndarray:
        parts = [part.errors for part in self.parts if part.library.dtype == dtype]
        sizes: np.ndarray = np.abs(np.concatenate(parts))
        return sizes

    @property
    def _formats(self) -> list[str]:
        return sorted({part.library.dtype for part in self.parts})

    @property
    def checks(self) -> tuple[Check, ...]:
        judged = sum(len(part.shapes) for part in self.parts)
        checks = [rows_check(judged, self.left_out)]
        median, ninetieth = self.limits
        for dtype in self._formats:
            errors = self._of(dtype)
            half, most = float(np.median(errors)), float(np.quantile(errors, 0.9))
            checks.append(Check(f"products in {dtype}: median error", half, median))
            checks.append(
                Check(f"products in {dtype}: 90th percentile", most, ninetieth)
            )
        return tuple(checks)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def groups(self) -> Mapping[str, Errors]:
        return {
            f"products in {dtype}": errors_of(
                [
                    pair
                    for part in self.parts
                    if part.library.dtype == dtype
                    for pair in zip(part.names, part.errors.tolist(), strict=True)
                ]
            )
            for dtype in self._formats
        }

    @property
    def case_tables(self) -> Sequence[Table]:
        rows = [_cells(part) for part in self.parts]
        return (Table("Absolute error at shapes that no table has", HEAD, rows),)

    @property
    def points(self) -> Sequence[Point]:
        return tuple(
            Point(name, part.library.dtype, float(measured), float(predicted), False)
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
        return {
            "set": self.name,
            "title": self.title,
            "passed": self.passed,
            "n": sum(len(part.shapes) for part in self.parts),
            "left_out": dict(self.left_out),
            "checks": [check.to_json() for check in self.checks],
            "groups": {name: each.to_json() for name, each in self.groups.items()},
            "cases": [_case(point) for point in self.points],
        }


def _cells(part: Products) -> tuple[str, ...]:
    who, errors = part.library, part.errors
    sizes = np.abs(errors)
    return (
        who.gpu,
        who.dtype,
        who.source,
        who.kernel,
        str(len(errors)),
        f"{np.median(sizes):.1%}",
        f"{np.quantile(sizes, 0.9):.1%}",
        f"{errors.mean():+.1%}",
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
    """Predicts the set's products, or those of a Parquet file in the columns of aiconfigurator; `jobs` is not used.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    table, (path, *_), title = asked(name, rows)
    every = pd.read_parquet(path) if rows is None else library_rows.read(path)
    left_out: Counter[str] = Counter()
    chosen = [
        (library, frame)
        for library, frame in _by_library(every)
        if not (reason := _reason(library)) or left_out.update({reason: len(frame)})
    ]
    parts = []
    for library, frame in progress.track(chosen, "libraries"):
        unseen = _unseen(frame) if rows is not None else frame
        left_out["shapes that the tables may have"] += len(frame) - len(unseen)
        if len(unseen):
            parts.append(_compared(library, unseen))
    limits = float(table["median"]), float(table["ninetieth"])
    return KernelReport(name, title, tuple(parts), limits, +left_out)


def _by_library(rows: pd.DataFrame) -> Iterator[tuple[Library, pd.DataFrame]]:
    for key, frame in rows.groupby(WHO, observed=True, dropna=False):
        yield Library(*map(str, key)), frame


def _reason(library: Library) -> str:
    """Why a library is not compared; "" if it is."""
    if library in products():
        return ""
    if library.gpu not in library_rows.GPUS.values():
        return "of GPUs without tables"
    if library.dtype not in library_rows.DTYPES.values():
        return "in formats without tables"
    return "of libraries without tables (older versions)"


def _unseen(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose shapes no table has."""
    shapes = zip(frame["m"], frame["n"], frame["k"], strict=True)
    return frame[[library_rows.held_out(*shape) for shape in shapes]]


def _compared(library: Library, frame: pd.DataFrame) -> Products:
    model = product_table(library, load_gpu(library.gpu).roofline)
    shapes = [(int(m), int(n), int(k)) for m, n, k in frame[["m", "n", "k"]].to_numpy()]
    return Products(
        library,
        ["x".join(map(str, shape)) for shape in shapes],
        frame["us"].to_numpy(dtype=float) * 1e-6,
        np.array([model.seconds(shape) for shape in shapes]),
    )
