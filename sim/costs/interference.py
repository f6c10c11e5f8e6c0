"""What communication beside it costs a kernel.

A communication kernel holds one SM per channel until it ends. A GEMM is a set of equal tiles that run in
rounds over the SMs, so losing SMs costs whole rounds. cuBLAS gives a kernel of up to two tiles per SM a fixed
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
TENSOR = ("gemm", "gemm_bias", "attention_fwd", "attention_bwd")  # bound by tensor cores, the others by memory
STATIC = 1.9  # two rounds instead of one, a little less than twice: measured 1.75 to 2.07 over 16 shapes


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def slowdown(kernel: Kernel, channels: int, sms: int) -> float:
    """Factor >= 1 on a kernel's time while communication holds ``channels`` of the GPU's ``sms``."""
    if channels <= 0:
        return 1.0
    if kernel.kind in ("gemm", "gemm_bias"):
        return _gemm(kernel, min(channels, sms - 1), sms)
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


def contention(kernel: Kernel) -> float:
    """Factor >= 1 on the time of a transfer beside a kernel: they share HBM and L2."""
    table = _table()["communication"]
    return float(table["tensor" if kernel.kind in TENSOR else "memory"])


def _gemm(kernel: Kernel, channels: int, sms: int) -> float:
    m, n, _ = kernel.shape
    free = sms - channels
    if m * n < free * SMALLEST_TILE:
        return 1.0
    if m * n <= 2 * sms * TILE:
        return STATIC
    tiles = math.ceil(m / 256) * math.ceil(n / 128)
    return max(1.0, (math.ceil(tiles / free) + 1) / math.ceil(tiles / sms))
