"""Chunked scans of training steps (Mamba-2, gated delta rule, Kimi delta attention) and what goes with them.

Measured on an H100, forward and backward, all CUDA kernels of a direction as one (the script is
`lab/cases/kernels/harness/scans.py`, rows are in `hardware/scans.parquet`). Other GPUs take the H100's times by
the share that `scans` in their files says, or in the file of the GPU they are like.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.costs.estimators import EXTRAPOLATED, OWN, Basis, Estimator
from prestep.sim.costs.estimators.library import rows_of_library
from prestep.sim.costs.kinds import SCANS
from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel

with lazily():
    from prestep.sim.costs import library_families, library_table
    from prestep.sim.costs.estimators import sibling

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

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


class Scans(Estimator):
    """A scan by the table of the GPU that scans were measured on."""

    name, covers = "scans", "chunked scans, their norms and convolutions"

    def answers(self, kernel: Kernel) -> bool:
        return kernel.kind in KINDS

    def seconds(self, kernel: Kernel) -> float:
        measured = float(_table(kernel.kind).seconds(_sizes(kernel))[0])
        return measured * share(kernel, self.gpu)

    def basis(self, kernel: Kernel) -> Basis:
        grade, past = self._grade(kernel), max(0.0, octaves(kernel) - REACH)
        if past > 0:
            return Basis(grade, EXTRAPOLATED, past)
        if grade != "guess":
            return Basis(grade)
        like = self.gpu.like
        lent = like is not None and like.name == MEASURED_ON
        source = f"borrowed from {MEASURED_ON}" if lent else OWN
        return Basis(grade, f"the {MEASURED_ON}'s table", source=source)

    def _grade(self, kernel: Kernel) -> str:
        """The shape itself, its neighbours and a stated share, or nothing of this GPU."""
        name, _ = KINDS[kernel.kind]
        if self.gpu.name == MEASURED_ON:
            return "measured" if octaves(kernel) < SAME else "fitted"
        return "fitted" if name in self.gpu.facts.scans else "guess"


def share(kernel: Kernel, gpu: Gpu) -> float:
    """Time on a GPU over that where scans were measured: what its file says, else as it differs from one it is like."""
    name, _ = KINDS[kernel.kind]
    if gpu.name == MEASURED_ON:
        return 1.0
    if name in gpu.facts.scans:
        return gpu.facts.scans[name]
    if gpu.like is None:
        return 1.0
    return share(kernel, gpu.like) * sibling.least_over(gpu, gpu.like, kernel)


def octaves(kernel: Kernel) -> float:
    """To the measured shape that is nearest."""
    return float(_table(kernel.kind).beyond(_sizes(kernel))[0])


def _sizes(kernel: Kernel) -> np.ndarray:
    return np.array([kernel.shape], dtype=float)


@cache
def _table(kind: str) -> library_table.LibraryTable:
    """Rows of a kind about the limits of the GPU that they were measured on."""
    from prestep.sim.costs.gpu import load  # which reads scans itself

    name, way = KINDS[kind]
    variant = f"training {DIRECTIONS[way]}"
    who = library_table.Library(MEASURED_ON, "bf16", SOURCES[name], name, variant)
    family = library_families.SCANS
    sizes, times = rows_of_library(family, who)
    return library_table.LibraryTable(
        family, sizes, times, load(MEASURED_ON).roofline, "bf16"
    )
