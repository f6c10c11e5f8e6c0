"""Which GPUs of a run are alike, and what the kernels of each kind do."""

from __future__ import annotations

from sim.analysis.energy import Share
from sim.analysis.kernels import KernelUse, kernel_uses
from sim.costs import Gpu
from sim.costs.measured import gpu_of
from sim.engine.execution import Run
from sim.planning.fleet import fleet_of
from sim.planning.planned import Planned


def shares_of(
    planned: Planned, run: Run, all_uses: tuple[KernelUse, ...]
) -> list[Share]:
    """The GPUs of a run with their kernels: all alike, or by what a what-if has changed of some."""
    fleet = fleet_of(planned.fabric, gpu_of(planned.fabric), planned.gpus)
    if not fleet.speeds:
        return [Share(planned.gpu, planned.lowered.layout.world, all_uses)]
    graph, groups = planned.graph, dict[Gpu, list[int]]()
    for at, program in enumerate(graph.programs):
        groups.setdefault(fleet.of(program.rank), []).append(at)
    return [
        Share(
            gpu,
            sum(len(graph.represents[graph.programs[at].rank]) for at in members),
            kernel_uses(planned, run, members),
        )
        for gpu, members in groups.items()
    ]
