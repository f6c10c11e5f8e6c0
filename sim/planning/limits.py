"""GPUs under a power limit that is not their model's, or at a lower clock: what each kernel draws there."""

from __future__ import annotations

from prestep.sim.costs.changed import ChangedGpu
from prestep.sim.costs.clock import Load
from prestep.sim.costs.power import Power
from prestep.sim.engine.execution import Limited
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain, OpGraph
from prestep.sim.planning.fleet import Fleet

# Of a GPU whose times have the limit's cost in them: what is drawn beyond another limit slows a kernel at once (guess).
AT_ONCE = Power(budget=0.0, product=1.0, exponent=2.14, other=1.0, idle=0.0)


def limited_of(fleet: Fleet, graph: OpGraph) -> dict[int, Limited]:
    """The simulated ranks with such a GPU."""
    made: dict[int, Limited] = {}
    known: dict[int, Limited] = {}
    for program in graph.programs:
        gpu = fleet.regulated(graph.pace.get(program.rank, program.rank))
        if gpu is None:
            continue
        if id(gpu) not in known:
            known[id(gpu)] = _limited(gpu, graph)
        made[program.rank] = known[id(gpu)]
    return made


def _limited(gpu: ChangedGpu, graph: OpGraph) -> Limited:
    power = gpu.power or AT_ONCE
    return Limited(power, tuple(_load(gpu, power, one) for one in graph.kernels))


def _load(gpu: ChangedGpu, power: Power, kernel: Kernel | Chain) -> Load:
    """Kernels of a chain have been slowed where it was executed; those that spin draw what a waiting GPU does."""
    if isinstance(kernel, Chain):
        return Load(power.other, 1.0)
    if kernel.kind == "spin":
        return Load(power.idle, 1.0)
    return gpu.load(kernel)
