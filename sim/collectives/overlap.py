"""Compute and communication side by side: who waits, who slows down.

A collective holds one SM per channel, moves its bytes through HBM, and can start only once the kernel beside
it leaves SMs free. Equations, measurements and errors: docs/collectives.md. Constants: [overlap] of
sim/costs/hardware/h200-nccl.toml, fitted by validation/calibrate_overlap.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sim.collectives.constants import MEASURED, load
from sim.errors import InputError, Mistake

# Rows and columns of the output tile of one CTA in cuBLAS's large bf16 kernels on Hopper (traces: 128x256).
TILE = (128, 256)


def _constants(gpu: str) -> Mapping[str, float]:
    return load(gpu).tables["overlap"]  # type: ignore[no-any-return]


def _kind(kernel_kind: str) -> str:
    """The class a kernel belongs to: gemm (and attention: it fills SMs and lives on tensor cores) or memory."""
    return "gemm" if kernel_kind in ("gemm", "matmul", "conv", "attention", "sdpa") else "memory"


def compute_slowdown(kernel_kind: str, channels: int, sms: int, gpu: str = MEASURED) -> float:
    """Factor (>= 1) on a kernel's duration while a collective holds `channels` of `sms` SMs.

    Raises
    ------
    InputError
        If the channels leave no SM.
    """
    if channels >= sms:
        raise InputError(Mistake("overlap", "channels", str(channels), f"fewer than the GPU's {sms} SMs"))
    return 1 + _constants(gpu)[f"share_{_kind(kernel_kind)}"] * (sms / (sms - channels) - 1)


def start_delay(kernel_duration: float, waves: float, gpu: str = MEASURED) -> float:
    """Seconds a collective waits for SMs when it is launched beside a kernel that fills the GPU.

    Parameters
    ----------
    kernel_duration : float
        Seconds the kernel takes alone.
    waves : float
        CTAs of the kernel over SMs; below one wave the GPU has free SMs and nobody waits.
    """
    if waves < 1:
        return 0.0
    c = _constants(gpu)
    return float(min(kernel_duration, c["wait_waves"] * kernel_duration / waves + c["wait_kernel"] * kernel_duration))


def collective_slowdown(kernel_kind: str, gpu: str = MEASURED) -> float:
    """Factor (>= 1) on a collective's own transfer time beside such a kernel: they share HBM, L2 and power."""
    return float(_constants(gpu)[f"collective_{_kind(kernel_kind)}"])


def gemm_waves(m: int, n: int, sms: int) -> float:
    """Waves of an m x n matrix product: output tiles over SMs, rounded up."""
    return float(math.ceil(math.ceil(m / TILE[0]) * math.ceil(n / TILE[1]) / sms))
