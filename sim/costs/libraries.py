"""Times of products as libraries of serving stacks run them: measured by others, by GPU, number format and library.

`hardware/products.parquet` has the rows (`python -m validation.fit.libraries`). Between them a time is the roofline's
with what the rows near it say of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sim.costs.gpu_files import HARDWARE
from sim.costs.roofline import Roofline
from sim.graph.kernel import Kernel

PRODUCTS = HARDWARE / "products.parquet"
Shape = tuple[int, int, int]

#: Where corrections start: the shortest call, s, and the share of the datasheet's limits (guesses).
FLOOR, REACHED = 2e-6, 0.75
#: Octaves over which a correction stays alike, its standard deviation in log time, and that of a row.
LENGTH, SPREAD, NOISE = 2.0, 0.3, 0.02
#: Rows that a time is read from.
NEAREST = 40


@dataclass(frozen=True)
class Library:
    """Who ran the products on which GPU: name ("h100"), number format ("bf16"), stack with version and kernel."""

    gpu: str
    dtype: str
    source: str
    kernel: str


class ProductTable:
    """Products of one library on one GPU in one format.

    Parameters
    ----------
    shapes, seconds
        Measured products (m, n, k) and their times, s.
    roofline
        Limits of the GPU.
    dtype
        Number format.
    """

    def __init__(
        self,
        shapes: np.ndarray,
        seconds: np.ndarray,
        roofline: Roofline,
        dtype: str,
    ) -> None:
        self._roofline, self._dtype = roofline, dtype
        self._points = np.log2(shapes.astype(float))
        bases = np.array([self.base(_shape(row)) for row in shapes])
        self._residuals = np.log(seconds / bases)

    def base(self, shape: Shape) -> float:
        """Seconds before corrections: what arithmetic and memory must at least take, and a start."""
        product = Kernel("gemm", shape, self._dtype, "nt")
        return FLOOR + self._roofline.bound(product) / REACHED

    def seconds(self, shape: Shape) -> float:
        """Of a product (m, n, k): its base with the correction of the rows nearest to it."""
        point = np.log2(np.array(shape, dtype=float))
        distances = _distance(self._points - point)
        count = min(NEAREST, len(distances))
        near = np.argpartition(distances, count - 1)[:count]
        return self.base(shape) * math.exp(self._correction(near, distances[near]))

    def _correction(self, near: np.ndarray, distances: np.ndarray) -> float:
        """Mean of a Gaussian process through some rows, at the point so far from them."""
        points, residuals = self._points[near], self._residuals[near]
        apart = _distance(points[:, None, :] - points[None, :, :])
        covariance = _alike(apart) + NOISE**2 * np.eye(len(near))
        mean = residuals.mean()
        weights = np.linalg.solve(covariance, residuals - mean)
        return float(mean + _alike(distances) @ weights)


def _shape(row: Iterable[int]) -> Shape:
    m, n, k = map(int, row)
    return m, n, k


def _distance(difference: np.ndarray) -> np.ndarray:
    """Octaves between points, along the last axis."""
    distance: np.ndarray = np.sqrt((difference**2).sum(axis=-1))
    return distance


def _alike(distance: np.ndarray) -> np.ndarray:
    """Covariance of corrections so far apart (Matern 3/2)."""
    scaled = distance * (math.sqrt(3) / LENGTH)
    covariance: np.ndarray = SPREAD**2 * (1.0 + scaled) * np.exp(-scaled)
    return covariance


@cache
def products(path: Path = PRODUCTS) -> Mapping[Library, pd.DataFrame]:
    """Rows of the packaged tables: m, n, k and seconds, by library."""
    rows = pd.read_parquet(path)
    groups = rows.groupby(["gpu", "dtype", "source", "kernel"], observed=True)
    return {Library(*map(str, key)): frame for key, frame in groups}


def product_table(library: Library, roofline: Roofline) -> ProductTable:
    """The packaged table of a library (a key of `products`), on a GPU of these limits."""
    rows = products()[library]
    shapes = rows[["m", "n", "k"]].to_numpy()
    seconds = rows["us"].to_numpy(dtype=float) * 1e-6
    return ProductTable(shapes, seconds, roofline, library.dtype)
