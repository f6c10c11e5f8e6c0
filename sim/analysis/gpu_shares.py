"""Which GPUs of a run are alike, and what the kernels of each kind do."""

from __future__ import annotations

import math

import numpy as np

from prestep.sim.analysis.energy import Share
from prestep.sim.analysis.kernels import KernelUse, kernel_uses
from prestep.sim.costs import Gpu
from prestep.sim.costs.measured import gpu_of
from prestep.sim.engine.execution import Run
from prestep.sim.planning.fleet import fleet_of
from prestep.sim.planning.planned import Planned


def shares_of(
    planned: Planned, run: Run, all_uses: tuple[KernelUse, ...]
) -> list[Share]:
    """The GPUs of a run with their kernels: all alike, or by what a what-if has changed of some."""
    fleet = fleet_of(planned.fabric, gpu_of(planned.fabric), planned.gpus)
    world, sent = planned.lowered.layout.world, sent_by_gpus(planned, run)
    if not fleet.speeds:
        return [Share(planned.gpu, world, all_uses, sent)]
    graph, groups = planned.graph, dict[Gpu, list[int]]()
    for at, program in enumerate(graph.programs):
        groups.setdefault(fleet.of(program.rank), []).append(at)
    counts = {
        gpu: sum(len(graph.represents[graph.programs[at].rank]) for at in members)
        for gpu, members in groups.items()
    }
    return [
        Share(
            gpu,
            counts[gpu],
            kernel_uses(planned, run, members),
            sent * counts[gpu] / world,
        )
        for gpu, members in groups.items()
    ]


def sent_by_gpus(planned: Planned, run: Run) -> float:
    """Bytes that leave all GPUs in a step, the mean of the steps of a run."""
    fabric, (moved, _) = planned.fabric, run.everywhere
    gpu = np.zeros(len(fabric.nodes), dtype=bool)
    gpu[fabric.positions(fabric.gpus)] = True
    rows = np.flatnonzero(moved > 0)
    leaving = rows[gpu[fabric.ends[0][rows]]]
    return math.fsum(moved[leaving].tolist()) / len(run.start[0])
