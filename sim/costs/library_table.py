"""Times between measured kernels of a library: the roofline's with what the rows near a kernel say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.library_families import Family, Sizes, Work
from prestep.sim.costs.tables import REACH, covariance

#: Share of the datasheet's limits where corrections start (a guess).
REACHED = 0.75
#: Octaves over which a correction stays alike, its standard deviation in log time, and that of a row.
LENGTH, SPREAD, NOISE = 4.0, 0.3, 0.02
#: Rows that a time is read from, and times read at once.
NEAREST, BATCH = 40, 1024
#: Octaves within which distances count as the same: rounding of a product of matrices stays below.
ALIKE = 2.0**-16


@dataclass(frozen=True)
class Library:
    """Who ran the kernels on which GPU.

    Attributes
    ----------
    gpu, dtype
        Names ("h100", "bf16").
    source, kernel
        Stack with version, and what it calls its kernel.
    variant
        What else sets times apart: the format of the cache, the balance of experts, the phase; "" for products.
    """

    gpu: str
    dtype: str
    source: str
    kernel: str
    variant: str = ""


class LibraryTable:
    """Kernels of one library on one GPU in one format.

    Parameters
    ----------
    family
        What the sizes mean.
    sizes, seconds
        Measured kernels, a row each, and their times, s.
    roofline
        Limits of the GPU.
    dtype
        Number format.
    """

    def __init__(
        self,
        family: Family,
        sizes: Sizes,
        seconds: np.ndarray,
        roofline: Roofline,
        dtype: str,
    ) -> None:
        self._family, self._roofline, self._dtype = family, roofline, dtype
        self._points = family.axes(sizes.astype(float))
        self._residuals = np.log(seconds / self.base(sizes))

    def base(self, sizes: Sizes) -> np.ndarray:
        """Seconds before corrections: what arithmetic and memory must at least take, and a start."""
        work = self._family.work(sizes.astype(float), self._dtype)
        return self._family.floor + least(self._roofline, self._dtype, work) / REACHED

    def seconds(self, sizes: Sizes) -> np.ndarray:
        """Of kernels, a row each: their bases with the corrections of the rows nearest to them."""
        points = self._family.axes(sizes.astype(float))
        batches = [points[at : at + BATCH] for at in range(0, len(points), BATCH)]
        corrections = np.concatenate([self._corrections(batch) for batch in batches])
        times: np.ndarray = self.base(sizes) * (1.0 + corrections)
        return times

    def least(self, sizes: Sizes) -> np.ndarray:
        """Seconds that no execution of kernels can undercut."""
        return least(
            self._roofline,
            self._dtype,
            self._family.work(sizes.astype(float), self._dtype),
        )

    def beyond(self, sizes: Sizes) -> np.ndarray:
        """Octaves from each kernel to the measured one that is nearest."""
        points = self._family.axes(sizes.astype(float))
        nearest: np.ndarray = _distances(points, self._points).min(axis=1)
        return nearest

    def _corrections(self, points: np.ndarray) -> np.ndarray:
        """What a kernel takes beyond its base, over that: by a Gaussian process through the rows nearest to each point.

        Far from all rows it falls as `prestep.sim.costs.tables.toward` does, until the base is left, which is a
        roofline.
        """
        near, to_rows = nearest(points, self._points)
        rows, residuals = self._points[near], self._residuals[near]
        mean = residuals.mean(axis=1, keepdims=True)
        means = mean[:, 0] + PROCESS.mean(rows, residuals - mean, to_rows)
        outside = np.maximum(0.0, to_rows.min(axis=1) - math.log2(REACH))
        beyond: np.ndarray = np.expm1(means) * 0.5**outside
        return beyond


@dataclass(frozen=True)
class Process:
    """A Gaussian process: octaves over which values stay alike, their standard deviation, and that of a row."""

    length: float
    spread: float
    noise: float

    def mean(
        self, rows: np.ndarray, values: np.ndarray, to_rows: np.ndarray
    ) -> np.ndarray:
        """At points, of the rows nearest to each (point x row x axis), their values, and the distances to them."""
        apart = np.sqrt(((rows[:, :, None] - rows[:, None]) ** 2).sum(axis=-1))
        noise = self.noise**2 * np.eye(rows.shape[1])
        weights = np.linalg.solve(self._alike(apart) + noise, values[..., None])[..., 0]
        mean: np.ndarray = (self._alike(to_rows) * weights).sum(axis=1)
        return mean

    def _alike(self, distance: np.ndarray) -> np.ndarray:
        """Covariance of values so far apart (Matern 3/2)."""
        return covariance(distance, self.length, self.spread)


#: Of what libraries take over their bases.
PROCESS = Process(LENGTH, SPREAD, NOISE)


def nearest(points: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each point the rows that are nearest (at most `NEAREST`), and the octaves to them."""
    distances = _distances(points, rows)
    count = min(NEAREST, len(rows))
    near = np.argpartition(_turns(distances), count - 1, axis=1)[:, :count]
    near.sort(axis=1)
    return near, np.take_along_axis(distances, near, axis=1)


def _turns(distances: np.ndarray) -> np.ndarray:
    """Whole numbers, no two of a point alike, that order rows by distance; of rows as far apart the first comes first.

    Tables are grids, so many rows are equally far. Which of them a sort of distances takes depends on the processor's
    vector unit, and on the last bits of a product of matrices.
    """
    steps = np.rint(distances / ALIKE).astype(np.int64)
    rows = distances.shape[1]
    turns: np.ndarray = steps * rows + np.arange(rows)
    return turns


def _distances(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Octaves from each point to each of the others."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None]
    distances: np.ndarray = np.sqrt(np.maximum(squares - 2 * points @ others.T, 0.0))
    return distances


def least(roofline: Roofline, dtype: str, work: Work) -> np.ndarray:
    """Seconds that no execution of some work can undercut (`Roofline.bound`), of many kernels."""
    flops, size = work
    cached = np.minimum(size, roofline.l2)
    memory = (size - cached) / roofline.bandwidth + cached / roofline.l2_bandwidth
    return np.maximum(flops / roofline.peak_of(dtype), memory)
