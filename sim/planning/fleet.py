"""The GPUs of a run: all alike, or some of them slower or faster than their model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.costs import Gpu
from prestep.sim.costs.changed import AS_MODEL, ChangedGpu, Speed, changed
from prestep.sim.costs.power import Load, Power
from prestep.sim.engine.execution import Limited
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain, OpGraph
from prestep.topologies.fabric import Fabric

LIMIT = "power_limit"  # attribute of a GPU
LEAST = 1.2  # a power limit over what a GPU draws without kernels: below, nothing is known of clocks

# Of a GPU whose times have the limit's cost in them: what is drawn beyond another limit slows a kernel at once (guess).
AT_ONCE = Power(budget=0.0, product=1.0, exponent=2.14, other=1.0, idle=0.0)


@dataclass(frozen=True)
class Fleet:
    """GPUs by rank.

    Attributes
    ----------
    gpu : Gpu
        What they have in common: the model, or the changed model if all are changed alike.
    model : Gpu
        The model.
    speeds : tuple of Speed
        What each rank's GPU differs by from the model; empty when all are alike.
    """

    gpu: Gpu
    model: Gpu
    speeds: tuple[Speed, ...] = ()

    def of(self, rank: int) -> Gpu:
        """The GPU of a rank."""
        return changed(self.model, self.speeds[rank]) if self.speeds else self.gpu

    def regulated(self, rank: int) -> ChangedGpu | None:
        """The GPU of a rank whose clock falls in other places than its model's; None of all others."""
        gpu = self.of(rank)
        return gpu if isinstance(gpu, ChangedGpu) and gpu.regulated else None

    def scale(
        self, graph: OpGraph, rank: int, together: float, alone: Sequence[bool]
    ) -> float | np.ndarray:
        """Factor on the kernels of a rank: one number, or one per kernel of the graph.

        `together` is the factor of the slowest of all ranks that wait for each other; a rank that is slower than most
        by more than that is waited for by itself. `alone` says which kernels do not follow the GPU's speed.
        """
        if not self.speeds:
            return together
        counted = Counter(self.speeds)
        # Of as many, those as the model, or else the fastest: which rank comes first says nothing.
        usual = max(
            counted, key=lambda one: (counted[one], one == AS_MODEL, _pace(one))
        )
        if self.speeds[rank] == usual == AS_MODEL:
            return together
        own = self._ratios(graph, self.speeds[rank], alone)
        if self.speeds[rank] == usual:
            return own * together
        slower = own / self._ratios(graph, usual, alone)
        return own * rest_of(together, slower.max(initial=1.0))

    def _ratios(
        self, graph: OpGraph, speed: Speed, alone: Sequence[bool]
    ) -> np.ndarray:
        """Seconds of every kernel on a GPU of that speed over those on the model."""
        gpu = changed(self.model, speed)
        ratios = [
            1.0
            if spins or isinstance(kernel, Chain)
            else gpu.duration(kernel) / self.model.duration(kernel)
            for kernel, spins in zip(graph.kernels, alone, strict=True)
        ]
        return np.array(ratios)


def _pace(speed: Speed) -> float:
    """Which of two GPUs is the faster, roughly."""
    return speed.flops * speed.clock * speed.hbm_bandwidth * min(1.0, speed.power_limit)


def rest_of(together: float, slower: float) -> float:
    """What is left of the factor of the slowest for a rank that is known to be so much slower than most.

    All of it where the rank is like the others, nothing where it is slower than the slowest of them.
    """
    return max(1.0, together / max(slower, 1.0))


def fleet_of(fabric: Fabric, model: Gpu, gpus: Sequence[str]) -> Fleet:
    """The fleet of a fabric's what-ifs; `gpus` has the GPU of every rank."""
    speeds = speeds_of(fabric, model, gpus)
    if len(set(speeds)) == 1:
        return Fleet(changed(model, speeds[0]), model)
    return Fleet(model, model, speeds)


def speeds_of(fabric: Fabric, model: Gpu, gpus: Sequence[str]) -> tuple[Speed, ...]:
    """What each of these GPUs differs by from the model, after all changes of the fabric's GPUs."""
    speed = dict.fromkeys(gpus, AS_MODEL)
    usual = {"flops": model.peak["bf16"], "hbm_bandwidth": model.bandwidth}
    if any(change.attribute == LIMIT for change in fabric.gpu_changes):
        usual[LIMIT] = _limit_of(model)
    for change in fabric.gpu_changes:
        for name in change.gpus:
            if name in speed:
                before = getattr(speed[name], change.attribute)
                new = (
                    before * change.factor
                    if change.factor is not None
                    else (change.value or 0.0) / usual[change.attribute]
                )
                speed[name] = replace(speed[name], **{change.attribute: new})
    _check_limits(model, speed.values())
    return tuple(speed[name] for name in gpus)


def _limit_of(model: Gpu) -> float:
    """Watts that a GPU may draw, where it is known what draws them."""
    if model.power_limit is not None and model.draw is not None:
        return model.power_limit
    found = f"a {model.name}, of which nobody says what it draws"
    expected = "a GPU whose file has power_limit and [draw]"
    raise InputError.of("cluster.set", f"gpu.{LIMIT}", found, expected)


def _check_limits(model: Gpu, speeds: Iterable[Speed]) -> None:
    """Refuses a limit that leaves nothing for kernels."""
    lowest = min((speed.power_limit for speed in speeds), default=1.0)
    if lowest >= 1.0:
        return
    limit, drawn = _limit_of(model), model.draw
    idle = 0.0 if drawn is None else drawn.idle
    if model.power is not None:
        idle = max(idle, model.power.idle * limit)
    if lowest * limit < LEAST * idle:
        found = f"{lowest * limit:.0f} W"
        expected = f"at least {LEAST * idle:.0f} W: {idle:.0f} W are drawn by a {model.name} with nothing to do"
        raise InputError.of("cluster.set", f"gpu.{LIMIT}", found, expected)


def limited_of(fleet: Fleet, graph: OpGraph) -> dict[int, Limited]:
    """What kernels draw on the simulated ranks whose GPU has another power limit than its model, or a lower clock."""
    limited: dict[int, Limited] = {}
    by_gpu: dict[int, Limited] = {}
    for program in graph.programs:
        gpu = fleet.regulated(graph.pace.get(program.rank, program.rank))
        if gpu is None:
            continue
        if id(gpu) not in by_gpu:
            by_gpu[id(gpu)] = limit_of(gpu, graph)
        limited[program.rank] = by_gpu[id(gpu)]
    return limited


def limit_of(gpu: Gpu, graph: OpGraph) -> Limited:
    """The power limit of a GPU, and what the kernels of a graph would draw over it."""
    power = gpu.power or AT_ONCE
    return Limited(power, tuple(_load(gpu, power, one) for one in graph.kernels))


def _load(gpu: Gpu, power: Power, kernel: Kernel | Chain) -> Load:
    """Kernels of a chain have been slowed where it was executed; those that spin draw what a waiting GPU does."""
    if isinstance(kernel, Chain):
        return Load(power.other)
    if kernel.kind == "spin":
        return Load(power.idle)
    return gpu.load(kernel)
