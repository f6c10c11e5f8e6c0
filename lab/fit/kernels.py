"""Fits of the parametric kernel times by plain least squares, which need nothing but numpy, and tables as files."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from prestep.sim.costs import gemm, terms
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.kinds import work
from prestep.sim.costs.tables import Kriged, Row
from prestep.sim.graph.kernel import Kernel


def fit_terms(rows: list[Row]) -> dict[str, list[float]]:
    """Non-negative coefficients of every linear kind, by relative least squares."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        kind, layout, _ = terms.group(row.kernel)
        if kind in terms.LINEAR:
            grouped[kind, layout].append(row)
    return {
        terms.name(*key): _nonnegative(mine, terms.LINEAR[key[0]][0])
        for key, mine in grouped.items()
    }


def _nonnegative(rows: list[Row], term: terms.Terms) -> list[float]:
    """Coefficients of term / time = 1, none of them negative."""
    weights = np.array([[row.duration * row.noise] for row in rows])
    design = np.array([term(row.kernel) for row in rows]) / weights
    target = np.array([1.0 / row.noise for row in rows])
    # One or two shapes cannot tell a start-up time from work: then all of it is work.
    first = 0 if len(rows) > 2 else 1
    coefficients = [0.0] * design.shape[1]
    for column, value in _least_squares(design, target, first).items():
        coefficients[column] += value
    return coefficients


def _least_squares(
    design: np.ndarray, target: np.ndarray, first: int
) -> dict[int, float]:
    """Least squares by active set: columns from `first` on, negative ones dropped until none is left."""
    size = np.abs(design).max(axis=0)
    active = [column for column in range(first, design.shape[1]) if size[column] > 0]
    while True:
        scaled = design[:, active] / size[active]
        # A weak pull towards nothing keeps kinds with one or two rows solvable and growing.
        pull = 1e-6 * np.eye(len(active)) * target.mean() ** 2
        solution = np.linalg.solve(scaled.T @ scaled + pull, scaled.T @ target)
        if (solution >= 0).all():
            break
        active.pop(int(solution.argmin()))
    pairs = zip(active, solution, strict=True)
    return {column: float(value / size[column]) for column, value in pairs}


# Where the fit of a tile model starts beyond `gemm.TYPICAL`.
BEGIN = {"epilogue": 3e-11, "tail": 0.2}


def fit_gemm(rows: list[Row], gpu: Gpu) -> dict[str, float]:
    """Constants of the tile model by coordinate search on the log errors of the bf16 rows."""
    return _search({**asdict(gemm.TYPICAL), **BEGIN}, gemm_loss(rows, gpu))


def gemm_loss(rows: list[Row], gpu: Gpu) -> Callable[[dict[str, float]], float]:
    """How far off constants of the tile model are on the bf16 rows.

    Absolute errors count besides squared ones: now and then cuBLAS chooses a kernel that takes half as long again.
    """
    mine = [row for row in rows if row.kernel.is_product and row.kernel.dtype == "bf16"]
    tiles = _Tiles(mine, gpu)
    durations = np.array([row.duration for row in mine])
    weights = 1.0 / (np.array([row.noise for row in mine]) ** 2 + 0.05**2)
    weights /= weights.sum()

    def loss(constants: dict[str, float]) -> float:
        errors = np.abs(np.log(tiles.times(constants) / durations))
        return float((weights * (np.minimum(errors, 0.5) + 0.3 * errors**2)).sum())

    return loss


def _search(
    best: dict[str, float], loss: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    value = loss(best)
    for step in (1.3, 1.12, 1.05, 1.02):
        improved = True
        while improved:
            improved = False
            for name, old in list(best.items()):
                for factor in (step, 1 / step):
                    trial = {**best, name: old * factor}
                    possible = (
                        max(
                            trial["efficiency"],
                            trial["memory_efficiency"],
                            trial["tail"],
                        )
                        <= 1.0
                    )
                    if possible and (cost := loss(trial)) < value - 1e-6:
                        best, value, improved = trial, cost, True
    return best


def tilings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every way of cutting a product: both sides of its tile, and the parts that k is split into."""
    sides = [(a, b) for tile in gemm.TILES for a, b in (tile, tile[::-1])]
    ways = [(a, b, split) for a, b in sides for split in gemm.SPLITS]
    a, b, split = np.array(ways, float).T
    return a, b, split


class _Tiles:
    """The tile model of many products at once: rows by (tile, split); the same as `gemm.TileModel.time`."""

    def __init__(self, rows: list[Row], gpu: Gpu) -> None:
        shapes = np.array([row.kernel.shape for row in rows], float)
        m, n, k = (shapes[:, i : i + 1] for i in range(3))
        a, b, split = tilings()
        self.full = np.ceil(m / a) * np.ceil(n / b) * split / gpu.sms
        self.area, self.depth = a * b, k / split
        parts = 2.0e-6 + 8.0 * split * m * n / gpu.bandwidth
        self.reduce = np.where(split == 1, 0.0, parts)
        self.memory = np.array([work(row.kernel)[1] for row in rows]) / gpu.bandwidth
        self.sm_peak = gpu.peak["bf16"] / gpu.sms

    def times(self, constants: dict[str, float]) -> np.ndarray:
        """Seconds by row."""
        c = constants
        rate = (
            self.sm_peak
            * c["efficiency"]
            * np.minimum(1.0, self.area / 32768) ** c["exponent"]
        )
        waves = (1.0 - c["tail"]) * np.ceil(self.full) + c["tail"] * np.maximum(
            1.0, self.full
        )
        tile = c["tile_start"] + self.area * (c["epilogue"] + 2.0 * self.depth / rate)
        best = (waves * tile + self.reduce).min(axis=1)
        return np.asarray(
            c["floor"] + np.maximum(best, self.memory / c["memory_efficiency"])
        )


def fit_gemm_model(rows: list[Row], gpu: Gpu) -> Callable[[Kernel], float]:
    """The wave model with constants fitted to `rows`."""
    return tile_time(gemm.TileModel(**fit_gemm(rows, gpu)), gpu)


def tile_time(model: gemm.TileModel, gpu: Gpu) -> Callable[[Kernel], float]:
    """Seconds of products on a GPU by a wave model."""

    def time(kernel: Kernel) -> float:
        m, n, k = kernel.shape
        peak = gpu.roofline.peak_of(kernel.dtype)
        return model.time((m, n, k), gpu.sms, peak, gpu.bandwidth, work(kernel)[1])

    return time


def adamw_launches(
    launches: list[tuple[int, float]],
) -> tuple[list[tuple[float, float]], float]:
    """Launch time by chunks (monotone) and the slowdown of launches over untouched embedding rows."""
    by_chunks: dict[int, list[float]] = defaultdict(list)
    for chunks, time in launches:
        by_chunks[chunks].append(time)
    full = by_chunks[320]
    dense = statistics.median(t for t in full if t < 130e-6)
    sparse = statistics.median(t for t in full if t >= 150e-6) / dense
    points = [
        (float(c), statistics.median(t))
        for c, t in sorted(by_chunks.items())
        if c != 320
    ] + [(320.0, dense)]
    rising: list[tuple[float, float]] = []
    for count, time in points:
        rising.append((count, max(time, rising[-1][1] if rising else 0.0)))
    return rising, sparse


COLUMNS = (
    "kind",
    "layout",
    "dtype",
    "shape",
    "bytes",
    "seconds",
    "noise",
    "count",
    "source",
)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes the rows in their order."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(_cells, rows))


def _cells(row: Row) -> list[object]:
    kernel = row.kernel
    shape = "x".join(map(str, kernel.shape))
    size = f"{kernel.bytes:.0f}" if kernel.bytes else ""
    what = [kernel.kind, kernel.layout, kernel.dtype, shape, size]
    return [*what, f"{row.duration:.4g}", row.noise, row.count, row.source]


def leave_one_out(table: Kriged) -> np.ndarray:
    """Log errors (predicted over measured) of each row when it is left out (closed form)."""
    weights = np.diag(np.linalg.inv(table.covariance()))
    errors: np.ndarray = -table.alpha / weights
    return errors
