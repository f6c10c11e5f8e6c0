"""Kernels that a compiler generates: what their arithmetic takes, where it is more than moving their bytes.

Most of them stream. Sines, random numbers and looped softmax do not: H100 and H200, whose SMs are the same, take the
same time for them, though one's memory is 1.43 times as fast (`python -m lab.fit.generated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.graph.kernel import Kernel

KINDS = ("fused_pointwise", "fused_reduction")
FILE = Path(__file__).with_suffix(".toml")
#: Between names of functions in a kernel's layout.
SEPARATOR = "_"


@cache
def operations() -> Mapping[str, float]:
    """Operations of CUDA cores (flops of the fp32 peak) that each function of one element takes."""
    return schema.read(FILE, schema.Named(schema.Number(above=True)))


def streaming(kernel: Kernel) -> Kernel:
    """The kernel without its arithmetic: what its bytes take is in the tables."""
    if kernel.kind not in KINDS or not kernel.layout:
        return kernel
    return replace(kernel, layout="")


def seconds(kernel: Kernel, roofline: Roofline) -> float:
    """Seconds of the functions that a generated kernel evaluates; 0 for other kernels."""
    if kernel.kind not in KINDS or not kernel.layout:
        return 0.0
    each = sum(operations()[name] for name in kernel.layout.split(SEPARATOR))
    return kernel.shape[0] * each / roofline.peak_of("fp32")
