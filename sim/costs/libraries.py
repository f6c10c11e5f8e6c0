"""Times of kernels as libraries of serving stacks run them: measured by others, by GPU, number format and library.

`hardware/FAMILY.parquet` has the rows (`python -m validation.fit.libraries`). Between them a time is the roofline's
with what the rows near it say of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sim.costs.gpu_files import HARDWARE
from sim.costs.library_families import Family, Sizes, Work
from sim.costs.roofline import Roofline

#: Share of the datasheet's limits where corrections start (a guess).
REACHED = 0.75
#: Octaves over which a correction stays alike, its standard deviation in log time, and that of a row.
LENGTH, SPREAD, NOISE = 4.0, 0.3, 0.02
#: Rows that a time is read from, and times read at once.
NEAREST, BATCH = 40, 1024
WHO = ["gpu", "dtype", "source", "kernel", "variant"]


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
        times: np.ndarray = self.base(sizes) * np.exp(corrections)
        return times

    def beyond(self, sizes: Sizes) -> np.ndarray:
        """Octaves from each kernel to the measured one that is nearest."""
        points = self._family.axes(sizes.astype(float))
        nearest: np.ndarray = _distances(points, self._points).min(axis=1)
        return nearest

    def _corrections(self, points: np.ndarray) -> np.ndarray:
        """Means of a Gaussian process through the rows nearest to each point, at that point."""
        distances = _distances(points, self._points)
        count = min(NEAREST, len(self._points))
        near = np.argpartition(distances, count - 1, axis=1)[:, :count]
        rows, residuals = self._points[near], self._residuals[near]
        apart = np.sqrt(((rows[:, :, None] - rows[:, None]) ** 2).sum(axis=-1))
        covariance = _alike(apart) + NOISE**2 * np.eye(count)
        mean = residuals.mean(axis=1, keepdims=True)
        weights = np.linalg.solve(covariance, (residuals - mean)[..., None])[..., 0]
        to_point = _alike(np.take_along_axis(distances, near, axis=1))
        corrections: np.ndarray = mean[:, 0] + (to_point * weights).sum(axis=1)
        return corrections


def _alike(distance: np.ndarray) -> np.ndarray:
    """Covariance of corrections so far apart (Matern 3/2)."""
    scaled = distance * (math.sqrt(3) / LENGTH)
    covariance: np.ndarray = SPREAD**2 * (1.0 + scaled) * np.exp(-scaled)
    return covariance


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


@cache
def libraries(
    family: Family, folder: Path = HARDWARE
) -> Mapping[Library, pd.DataFrame]:
    """Rows of a family's packaged table: its sizes and microseconds, by library."""
    rows = pd.read_parquet(folder / f"{family.name}.parquet")
    groups = rows.groupby(WHO, observed=True)
    return {Library(*map(str, key)): frame for key, frame in groups}


def library_table(family: Family, library: Library, roofline: Roofline) -> LibraryTable:
    """The packaged table of a library (a key of `libraries`), on a GPU of these limits."""
    rows = libraries(family)[library]
    sizes = rows[list(family.sizes)].to_numpy()
    seconds = rows["us"].to_numpy(dtype=float) * 1e-6
    return LibraryTable(family, sizes, seconds, roofline, library.dtype)
