"""What the host spends on the CUDA kernels of operations that launch several, as sorts and cuDNN's layers do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prestep.sim.costs import Gpu
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, OpGraph, Program


def with_launches(graph: OpGraph, gpu: Gpu, each: float) -> OpGraph:
    """The graph with the host's time for further CUDA kernels of operations, spent before what follows them.

    Parameters
    ----------
    each
        Seconds of a launch; 0: what operations cost the host has them all.
    """
    if not each:
        return graph
    further = [
        gpu.further_launches(kernel) if isinstance(kernel, Kernel) else 0
        for kernel in graph.kernels
    ]
    programs = tuple(_paying(p, each * np.array(further)) for p in graph.programs)
    return replace(graph, programs=programs)


def _paying(program: Program, seconds: np.ndarray) -> Program:
    """Seconds of the host by kernel; what a CUDA graph replays costs the host nothing."""
    host, launched = program.host.copy(), (program.kind == KERNEL) & (program.host > 0)
    launched[-1:] = False
    at = np.flatnonzero(launched)
    host[at + 1] += seconds[program.payload[at]]
    return replace(program, host=host)
