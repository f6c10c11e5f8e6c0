"""The tile model of many published products at once, and the search for its constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.fit.kernels import tilings
from lab.formats.published_kernels import (
    Published,
)
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel

STARTS = {
    "floor": 4e-6,
    "tile_start": 5e-7,
    "efficiency": 0.8,
    "exponent": 0.1,
    "memory_efficiency": 0.8,
}


# What no kernel undercuts (the shortest on H200, s), and a little of each other effect.
LEAST = {"floor": 0.75e-6, "tile_start": 1e-7, "exponent": 0.01}


class Times:
    """`TileModel.time` of many kernels at once, as fast as a fit needs it."""

    def __init__(self, kernels: Sequence[Kernel], gpu: Gpu) -> None:
        shapes = np.array([kernel.shape for kernel in kernels], dtype=float)
        self.m, self.n, self.k = shapes.T[:, :, None]
        self.size = np.array([work(kernel)[1] for kernel in kernels])
        self.gpu, self.peak = gpu, gpu.roofline.peak_of(kernels[0].dtype)
        a, b, self.split = tilings()
        self.area = a * b
        tiles = np.ceil(self.m / a) * np.ceil(self.n / b)
        self.waves = np.ceil(tiles * self.split / gpu.sms)
        parts = 2e-6 + 8 * self.split * self.m * self.n / gpu.bandwidth
        self.reduce = np.where(self.split == 1, 0.0, parts)

    def __call__(self, c: dict[str, float]) -> np.ndarray:
        rate = (
            self.peak
            / self.gpu.sms
            * c["efficiency"]
            * np.minimum(1, self.area / 32768) ** c["exponent"]
        )
        tiles = (
            self.waves * (c["tile_start"] + 2 * self.area * self.k / self.split / rate)
            + self.reduce
        )
        memory = self.size / (self.gpu.bandwidth * c["memory_efficiency"])
        quantize = (self.m * self.k)[:, 0] * c.get("quantize", 0.0)
        return np.asarray(c["floor"] + np.maximum(tiles.min(axis=1), memory) + quantize)


def optimum(
    rows: Sequence[Published], gpu: Gpu, out: np.ndarray
) -> tuple[dict[str, float], np.ndarray]:
    """Constants of least squared logarithmic error on the rows that are not held out, and the errors of all."""
    kernels = [row.kernel for row in rows]
    measured, times = np.log([row.seconds for row in rows]), Times(kernels, gpu)
    start = STARTS | ({"quantize": 1e-12} if kernels[0].dtype != "bf16" else {})
    best = _search(
        lambda c: float(((np.log(times(c)) - measured)[~out] ** 2).mean()), start
    )
    return best, np.log(times(best)) - measured


def _search(
    loss: Callable[[dict[str, float]], float], constants: dict[str, float]
) -> dict[str, float]:
    """Coordinate search by shrinking factors; shares stay below 1."""
    best, value = dict(constants), loss(constants)
    for step in (2.0, 1.3, 1.12, 1.05, 1.02):
        improved = True
        while improved:
            improved = False
            for name in best:
                for factor in (step, 1 / step):
                    trial = {**best, name: best[name] * factor}
                    possible = all(
                        trial[key] >= least for key, least in LEAST.items()
                    ) and (max(trial["efficiency"], trial["memory_efficiency"]) <= 1.0)
                    if possible and (cost := loss(trial)) < value - 1e-9:
                        best, value, improved = trial, cost, True
    return best
