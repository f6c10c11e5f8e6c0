"""Measured times, read between the measurements.

`Curve`: one axis (bytes), piecewise linear in log-log, monotone. `Kriged`: several axes; a base times a correction that
interpolates the measured rows in log space.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.graph.kernel import PREFIX, Kernel, named

# Below this many bytes (1 us at HBM speed) a kernel is latency, so its time says little about larger ones (guess).
LATENCY_BOUND = 4e6
# Times the measured sizes up to which a table is continued; beyond, the roofline is.
REACH = 8.0
# Octaves outside the measured sizes from which on a reading is called an extrapolation (guess: half to double is near).
NEAR = 1.0
NOISE = 0.03  # measured: repetitions on another start of the machine differ by 3.5 % on the mean
JITTER = 0.3e-6  # guess, s: that by which the shortest kernels differ
SAME = 1e-6  # octaves within which two positions are one


@dataclass(frozen=True)
class Row:
    """One measured kernel: `duration` in s (median of `count`), `noise` its relative uncertainty.

    An operation may be several CUDA kernels: their seconds are summed, and `launches` counts them.
    """

    kernel: Kernel
    duration: float
    noise: float
    count: int = 1
    source: str = ""
    launches: int = 1


def read_rows(path: Path) -> list[Row]:
    """Rows of a table file: kind, layout, dtype, shape (sizes joined by x), bytes, seconds, noise, count, source."""
    with path.open(newline="") as file:
        return [row_of(fields) for fields in csv.DictReader(file)]


def row_of(fields: Mapping[str, Any]) -> Row:
    """A row of a table, of texts or numbers by the names of its columns."""
    shape = tuple(int(size) for size in fields["shape"].split("x"))
    kind, dtype, layout, size = (
        fields[name] for name in ("kind", "dtype", "layout", "bytes")
    )
    kernel = named(kind, shape, dtype, layout, float(size or 0))
    seconds, noise = float(fields["seconds"]), float(fields["noise"])
    return Row(kernel, seconds, noise, int(fields["count"]), fields["source"])


def read_operations(path: Path) -> list[Row]:
    """Rows of a table: kind, layout, types, shape (sizes joined by x), bytes, flops, microseconds, launches."""
    with path.open(newline="") as file:
        return [_operation(fields) for fields in csv.DictReader(file)]


def _operation(fields: dict[str, str]) -> Row:
    kernel = Kernel(
        PREFIX + fields["kind"],
        tuple(int(size) for size in fields["shape"].split("x")),
        fields["dtype"],
        fields["layout"],
        float(fields["bytes"]),
        float(fields["flops"] or 0),
    )
    seconds = float(fields["us"]) * 1e-6
    noise = math.hypot(NOISE, JITTER / seconds)
    return Row(kernel, seconds, noise, launches=int(fields["launches"]))


class Curve:
    """Seconds by bytes: isotonic through the rows, a straight line to `floor` below them, proportional above.

    Where all rows are bound by latency, the line above them has the slope of the rows, no faster than `rate` bytes/s.
    That slope is noise where rows lie close together, so from `REACH` times the largest size on it is that of the
    roofline, `rate`, or of the largest row without the time of the smallest one, where memory bounds that.
    """

    def __init__(
        self,
        points: Iterable[tuple[float, float, float]],
        floor: float,
        rate: float = math.inf,
    ) -> None:
        """`points` are (bytes, seconds, weight)."""
        self.sizes, self.times = _isotonic(sorted(points))
        self.floor = min(floor, self.times[0])
        sizes, times = self.sizes, self.times
        self.slope = times[-1] / sizes[-1]
        if sizes[-1] < LATENCY_BOUND:
            rise = (
                (times[-1] - times[0]) / (sizes[-1] - sizes[0])
                if len(sizes) > 1
                else 0.0
            )
            self.slope = max(rise, 1.0 / rate)
        bound = sizes[-1] >= LATENCY_BOUND
        moving = (times[-1] - times[0]) / sizes[-1] if bound else 0.0
        self.far_slope = max(moving, 1.0 / rate)

    def __call__(self, size: float) -> float:
        sizes, times = self.sizes, self.times
        if size <= sizes[0]:
            return self.floor + (times[0] - self.floor) * size / sizes[0]
        if size >= sizes[-1]:
            near = min(size, REACH * sizes[-1])
            at_reach = times[-1] + self.slope * (near - sizes[-1])
            return at_reach + self.far_slope * (size - near)
        at = int(np.searchsorted(sizes, size))
        share = math.log(size / sizes[at - 1]) / math.log(sizes[at] / sizes[at - 1])
        return float(times[at - 1] * (times[at] / times[at - 1]) ** share)

    def measured(self, size: float) -> bool:
        """Whether a row lies within 1 % of `size`."""
        return any(abs(known / size - 1) < 0.01 for known in self.sizes)

    def reaches(self, size: float) -> bool:
        """Whether the rows go up to `size`, or nearly; below them the line ends at the floor, which is known."""
        return size <= self.sizes[-1] * 2**NEAR

    def past(self, size: float) -> float:
        """Octaves from the largest row to `size`; 0 up to it."""
        return max(0.0, math.log2(size / self.sizes[-1])) if size > 0 else 0.0


def toward(roofline: float, table: float, octaves: float) -> float:
    """Seconds so many octaves outside a table: what it says up to `REACH`, then more and more what the roofline does.

    A table's excess over the roofline (starts, noise of short rows) stays about what it is at the joint, while the
    roofline grows with the work.

    Examples
    --------
    >>> toward(1.0, 5.0, 3.0), toward(8.0, 40.0, 6.0), toward(2.0**12, 5 * 2.0**12, 15.0) / 2**12
    (5.0, 12.0, 1.0009765625)
    """
    outside = max(0.0, octaves - math.log2(REACH))
    return roofline + (table - roofline) * math.exp2(-outside)


def _isotonic(
    points: list[tuple[float, float, float]],
) -> tuple[list[float], list[float]]:
    """Pool adjacent violators on log time, after merging equal sizes."""
    blocks: list[_Block] = []
    merged = _merged(points)
    for block in merged.values():
        blocks.append(block)
        while len(blocks) > 1 and blocks[-2].mean > blocks[-1].mean:
            last = blocks.pop()
            blocks[-1] = blocks[-1].pooled(last)
    times = [math.exp(block.mean) for block in blocks for _ in range(block.members)]
    return list(merged), times


class _Block(NamedTuple):
    """Sizes that share one time: their weight, the sum of weight times log time, and how many they are."""

    weight: float
    total: float
    members: int

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def pooled(self, other: _Block) -> _Block:
        members = self.members + other.members
        return _Block(self.weight + other.weight, self.total + other.total, members)


def _merged(points: list[tuple[float, float, float]]) -> dict[float, _Block]:
    """One block for every size, in the order in which they come."""
    merged: dict[float, _Block] = {}
    for size, time, weight in points:
        before = merged.get(size, _Block(0.0, 0.0, 1))
        total = before.total + weight * math.log(time)
        merged[size] = _Block(before.weight + weight, total, 1)
    return merged


def covariance(distance: np.ndarray, length: float, spread: float) -> np.ndarray:
    """Covariance of values that lie `distance` apart; `length` in the same unit, `spread` their standard deviation.

    Matern 3/2: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equation 4.17.
    """
    scaled = distance * (math.sqrt(3) / length)
    alike: np.ndarray = spread**2 * (1.0 + scaled) * np.exp(-scaled)
    return alike


class Kriged:
    """`base(kernel)` times a correction through measured rows (Gaussian process in log time, Matern 3/2).

    Parameters
    ----------
    rows
        Measurements; `row.noise` is each one's relative standard deviation.
    base
        Seconds of a kernel before the correction.
    axes
        Position of a kernel, in octaves.
    length
        Distance (octaves) over which corrections stay alike; `spread` is their standard deviation in log time.
    mean
        Logarithm of the correction far from all rows; None: as the rows have it.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        base: Callable[[Kernel], float],
        axes: Callable[[Kernel], tuple[float, ...]],
        length: float,
        spread: float,
        mean: float | None = None,
    ) -> None:
        self.base, self.axes, self.length, self.spread = base, axes, length, spread
        self.points = np.array([axes(row.kernel) for row in rows])
        self.low, self.high = self.points.min(axis=0), self.points.max(axis=0)
        self.launches = [row.launches for row in rows]
        residual = np.array([math.log(row.duration / base(row.kernel)) for row in rows])
        self.variance = np.array([row.noise for row in rows]) ** 2
        weights = 1.0 / (self.variance + spread**2)
        own = float((weights * residual).sum() / weights.sum())
        self.mean = own if mean is None else mean
        #: How much each row's correction counts at a distance of 0.
        self.alpha = np.linalg.solve(self.covariance(), residual - self.mean)

    def covariance(self) -> np.ndarray:
        """Covariance of the rows' corrections, their noise included; shape (rows, rows)."""
        apart = self.points[:, None, :] - self.points[None, :, :]
        return self._alike(apart) + np.diag(self.variance)

    def correction(self, position: np.ndarray) -> float:
        """Factor on the base at a position."""
        near = self._alike(self.points - position)
        return math.exp(self.mean + float(near @ self.alpha))

    def _alike(self, difference: np.ndarray) -> np.ndarray:
        distance = np.sqrt((difference**2).sum(axis=-1))
        return covariance(distance, self.length, self.spread)

    def __call__(self, kernel: Kernel) -> float:
        return self.base(kernel) * self.correction(np.array(self.axes(kernel)))

    def continued(self, kernel: Kernel, limit: float) -> float:
        """Seconds, far outside the rows by the roofline's `limit`; products go on by their tiles, a roofline too."""
        seconds = self(kernel)
        if "mm" in kernel.kind:
            return seconds
        return toward(limit, seconds, self.past(kernel))

    def within(self, kernel: Kernel) -> float:
        """Seconds with the correction of the nearest edge of the rows; far outside the base, which is a roofline."""
        position = np.array(self.axes(kernel))
        at = np.clip(position, self.low, self.high)
        base, octaves = self.base(kernel), float(np.abs(position - at).max())
        return toward(base, base * self.correction(at), octaves)

    def fits(self, kernel: Kernel) -> bool:
        """Whether the kernel has as many sizes as the rows."""
        return len(self.axes(kernel)) == len(self.low)

    def starts(self, kernel: Kernel) -> int:
        """CUDA kernels that the nearest row launches."""
        return self.launches[int(self._distances(kernel).argmin())]

    def _distances(self, kernel: Kernel) -> np.ndarray:
        """Octaves from each row to a kernel, on the axis on which they are furthest apart."""
        apart = np.abs(self.points - np.array(self.axes(kernel)))
        octaves: np.ndarray = apart.max(axis=1)
        return octaves

    def measured(self, kernel: Kernel) -> bool:
        """Whether a row has this very position."""
        return bool((self._distances(kernel) < SAME).any())

    def past(self, kernel: Kernel) -> float:
        """Octaves from the rows to a kernel, on the axis on which it is furthest outside; 0 among them."""
        at = np.array(self.axes(kernel))
        return float(max(0.0, (self.low - at).max(), (at - self.high).max()))

    def reaches(self, kernel: Kernel) -> bool:
        """Whether this position lies among the rows, or nearly, on every axis."""
        return self.past(kernel) <= NEAR
