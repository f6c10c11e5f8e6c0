"""How long kernels take on a GPU: measured tables, parametric models between them, the roofline elsewhere."""

from __future__ import annotations

from functools import cache

from prestep.sim.costs.gpu import Gpu, load
from prestep.sim.graph.kernel import Kernel

__all__ = ["Gpu", "Kernel", "load_gpu"]


@cache
def load_gpu(name: str) -> Gpu:
    """The GPU called `name` ("h200", "h100", "a100", ...), one shared instance per process.

    Raises
    ------
    InputError
        If `sim/costs/hardware/` has no such GPU; close names are suggested.
    """
    return load(name)
