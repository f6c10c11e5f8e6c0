"""What communication beside it costs a kernel.

A communication kernel holds one SM per channel until it ends. A GEMM is a set of equal tiles that run in
rounds over the SMs, so losing SMs costs whole rounds. cuBLAS gives a kernel of up to three tiles per SM a fixed
share per thread block; the blocks that find no SM run after the others, and the kernel takes twice as long.
Larger ones draw tiles from a counter and take ``ceil(tiles / free SMs)`` rounds, plus one because the blocks
that started late finish late. Other kernels slow down by measured factors (``interference.toml``).
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from sim.costs.kernel import Kernel

TILE = 256 * 128  # elements of the output tile of cuBLAS's large Hopper kernels (nvjet 256x128, 128x256)
SMALLEST_TILE = 64 * 128  # small products are cut finer, so that they too fill the GPU
STATIC = 1.9  # two rounds instead of one, a little less than twice: measured 1.75 to 2.07 over 16 shapes
ROUNDS = 3  # products of up to so many tiles per SM: 2.1 took 1.87 times as long (traces of 13B), 3.9 took 1.42 times


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def slowdown(kernel: Kernel, channels: int, sms: int, alone: float = 0.0) -> float:
    """Factor >= 1 on a kernel's time while communication holds ``channels`` of the GPU's ``sms``.

    ``alone`` is a matrix product's time (s) in a stream of nothing but products, where power may hold the clock
    down; 0: among other kernels, where it does not. SMs lost to communication free power, so the clock rises: what
    is lost is the smaller of the two, not their product.
    """
    if channels <= 0:
        return 1.0
    if kernel.kind in ("gemm", "gemm_bias"):
        return max(1.0, _gemm(kernel, min(channels, sms - 1), sms) / _throttle(kernel, alone))
    table = _table()
    factor = _factor(kernel)
    if factor is None:
        factor = table["default"]
    return float(1.0 + (factor - 1.0) * min(1.0, channels / table["reference_channels"]))


def is_known(kernel: Kernel) -> bool:
    """Whether a kernel's slowdown beside communication was measured or follows from its tiles."""
    return kernel.kind in ("gemm", "gemm_bias", "spin") or _factor(kernel) is not None


def _factor(kernel: Kernel) -> float | None:
    factors: dict[str, float] = _table()["factor"]
    return factors.get(f"{kernel.kind} {kernel.layout}".strip(), factors.get(kernel.kind))


def contention() -> float:
    """Factor >= 1 on the time of a collective that moves data beside kernels (they share HBM and L2)."""
    return float(_table()["communication"])


def _throttle(kernel: Kernel, alone: float) -> float:
    """How much slower a matrix product runs alone because power holds its clock down; 1 where it does not."""
    power = _table()["power"]
    m, n, k = kernel.shape
    rate = 2.0 * m * n * k / alone if alone > 0 else math.inf
    return float(power["free"]) / rate if power["least"] <= rate <= power["free"] else 1.0


def _gemm(kernel: Kernel, channels: int, sms: int) -> float:
    m, n, _ = kernel.shape
    free = sms - channels
    if m * n < free * SMALLEST_TILE:
        return 1.0
    if m * n <= ROUNDS * sms * TILE:
        return STATIC
    tiles = math.ceil(m / 256) * math.ceil(n / 128)
    return max(1.0, (math.ceil(tiles / free) + 1) / math.ceil(tiles / sms))
