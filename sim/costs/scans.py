"""Chunked scans of training steps (Mamba-2, gated delta rule, Kimi delta attention) and what goes with them.

Measured on an H100, forward and backward, all CUDA kernels of a direction as one (the script is
`lab/cases/kernels/harness/scans.py`, rows are in `hardware/scans.parquet`). Other GPUs take the H100's times by
the share that `scans` in their files says, or in the file of the GPU they are like.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.costs.kinds import SCANS
from prestep.sim.costs.library_families import SCANS as FAMILY
from prestep.sim.costs.library_steps import rows_of_library
from prestep.sim.costs.library_table import Library, LibraryTable
from prestep.sim.costs.similar import least_over
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu_times import GpuTimes

MEASURED_ON = "h100"
#: Whose kernels they are.
SOURCES = {
    "mamba2": "mamba_ssm/2.3.2",
    "gated_norm": "mamba_ssm/2.3.2",
    "gdn": "fla/0.6.0",
    "kda": "fla/0.6.0",
    "fla_conv1d": "fla/0.6.0",
}
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
KINDS = {f"{name}_{way}": (name, way) for name in SCANS for way in DIRECTIONS}
#: Octaves from a measured shape within which times are read, not extrapolated.
REACH = 2.0
SAME = 1e-3  # octaves within which two shapes are one


def seconds(kernel: Kernel, gpu: GpuTimes) -> float:
    """Of a scan (`KINDS`) on a GPU."""
    return float(_table(kernel.kind).seconds(_sizes(kernel))[0]) * share(kernel, gpu)


def share(kernel: Kernel, gpu: GpuTimes) -> float:
    """Time on a GPU over that where scans were measured: what its file says, else as it differs from one it is like."""
    name, _ = KINDS[kernel.kind]
    if gpu.name == MEASURED_ON:
        return 1.0
    if name in gpu.facts.scans:
        return gpu.facts.scans[name]
    if gpu.like is None:
        return 1.0
    return share(kernel, gpu.like) * least_over(gpu, gpu.like, kernel)


def grade(kernel: Kernel, gpu: GpuTimes) -> str:
    """What a time rests on: the shape itself, its neighbours and a stated share, or nothing of this GPU."""
    name, _ = KINDS[kernel.kind]
    if gpu.name == MEASURED_ON and octaves(kernel) < SAME:
        return "measured"
    return "fitted" if gpu.name == MEASURED_ON or name in gpu.facts.scans else "guess"


def past(kernel: Kernel) -> float:
    """Octaves by which a scan lies beyond what the table reaches."""
    return max(0.0, octaves(kernel) - REACH)


def octaves(kernel: Kernel) -> float:
    """To the measured shape that is nearest."""
    return float(_table(kernel.kind).beyond(_sizes(kernel))[0])


def _sizes(kernel: Kernel) -> np.ndarray:
    return np.array([kernel.shape], dtype=float)


@cache
def _table(kind: str) -> LibraryTable:
    """Rows of a kind about the limits of the GPU that they were measured on."""
    from prestep.sim.costs.gpu import load  # which reads scans itself

    name, way = KINDS[kind]
    variant = f"training {DIRECTIONS[way]}"
    who = Library(MEASURED_ON, "bf16", SOURCES[name], name, variant)
    sizes, times = rows_of_library(FAMILY, who)
    return LibraryTable(FAMILY, sizes, times, load(MEASURED_ON).roofline, "bf16")
