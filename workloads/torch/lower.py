"""Lowers a scenario to an operation graph: which ranks are simulated, and what each of them issues."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sim.costs.frameworks import host_costs
from sim.errors import InputError, Mistake
from sim.graph.opgraph import OpGraph
from sim.spec.rules.layout import axis_order
from workloads.models.model import ModelSpec
from workloads.torch.rank_step import RankStep
from workloads.torch.tape import PHASES, Memory, Shared, Tape

if TYPE_CHECKING:
    from sim.spec.sections import Scenario


def strides_of(order: Sequence[str], degrees: Mapping[str, int]) -> dict[str, int]:
    """Distance of neighbours along each axis; `order` is from the innermost axis outwards."""
    strides, stride = {}, 1
    for axis in order:
        strides[axis] = stride
        stride *= degrees[axis]
    return strides


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of dp x pp x tp; `order` is from the axis on neighbouring ranks outwards; cp counts as dp."""

    dp: int
    pp: int
    tp: int
    order: tuple[str, ...] = ("tp", "pp", "dp")

    @cached_property
    def _strides(self) -> dict[str, int]:
        return strides_of(self.order, vars(self))

    def rank(self, d: int, p: int, t: int) -> int:
        strides = self._strides
        return d * strides["dp"] + p * strides["pp"] + t * strides["tp"]

    def where(self, rank: int) -> tuple[int, int, int]:
        strides = self._strides
        d, p, t = (
            rank // strides[axis] % getattr(self, axis) for axis in ("dp", "pp", "tp")
        )
        return d, p, t

    def pipeline(self, rank: int) -> tuple[int, ...]:
        """The ranks of the pipeline that a rank is in, in the order of the stages."""
        stride = self._strides["pp"]
        first = rank - rank // stride % self.pp * stride
        return tuple(first + p * stride for p in range(self.pp))

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp


def layout_of(scenario: Scenario) -> Layout:
    """Where the ranks of a PyTorch run lie."""
    p = scenario.parallel
    return Layout(
        p.dp,
        p.pp,
        p.tp,
        tuple(axis for axis in axis_order(scenario) if axis in ("tp", "pp", "dp")),
    )


@dataclass(frozen=True)
class Lowered:
    """The graph with what does not depend on time.

    ``memory`` and ``host_operations`` (how often each host operation runs in a step) are per simulated rank;
    ``parameters`` counts the whole model; ``made_for`` has the host factor and the speeds of the GPUs.
    """

    graph: OpGraph
    memory: dict[int, Memory]
    host_operations: dict[int, dict[str, float]]
    parameters: int
    layout: Layout
    made_for: tuple[float, Sequence[Hashable]] = (1.0, ())


def lower(
    scenario: Scenario,
    model: ModelSpec,
    host_factor: float = 1.0,
    speeds: Sequence[Hashable] = (),
) -> Lowered:
    """Runs every simulated rank's training step symbolically; ``host_factor`` scales the framework's host costs.

    Ranks that do the same are simulated once (data- and tensor-parallel copies), unless one of them is slow.
    ``speeds`` tells ranks of unlike GPUs apart: equal ones are alike; empty, all are.
    """
    p = scenario.parallel
    if p.cp > 1:
        raise InputError(
            Mistake(
                scenario.where,
                "parallel.cp",
                str(p.cp),
                "1",
                "context parallelism is not simulated",
            )
        )
    layout = layout_of(scenario)
    replicas = _replicas(scenario, layout, speeds)
    fold = bool(replicas)
    simulated = [
        layout.rank(d[0], s, 0) for d in replicas for s in range(p.pp)
    ] or list(range(layout.world))
    alike = {d[0]: d for d in replicas}
    shared = Shared()
    costs = {
        name: time * host_factor
        for name, time in host_costs(scenario.training.framework).items()
    }
    steps = {
        r: RankStep(scenario, model, layout, Tape(r, shared, costs), replicas)
        for r in simulated
    }
    for step in steps.values():
        step.record()
    represents = {
        r: tuple(
            layout.rank(d, layout.where(r)[1], t)
            for d in alike[layout.where(r)[0]]
            for t in range(p.tp)
        )
        if fold
        else (r,)
        for r in simulated
    }
    graph = OpGraph(
        tuple(s.tape.program() for s in steps.values()),
        tuple(shared.kernels),
        tuple(shared.rendezvous.comms),
        tuple(shared.streams),
        PHASES,
        represents,
    )
    counted = [
        s.parameter_count
        for r, s in steps.items()
        if layout.where(r)[0] == layout.where(r)[2] == 0
    ]
    memory = {r: s.tape.memory for r, s in steps.items()}
    return Lowered(
        graph,
        memory,
        {r: s.tape.counts for r, s in steps.items()},
        sum(counted),
        layout,
        (host_factor, speeds),
    )


FEW = 16  # ranks up to which all are simulated when one of them is slow: folding would spare nothing


def _replicas(
    scenario: Scenario, layout: Layout, speeds: Sequence[Hashable]
) -> tuple[tuple[int, ...], ...]:
    """Data-parallel replicas that do the same, of which the first is simulated; empty: no two ranks are alike."""
    slow = scenario.faults.slow_rank
    if slow is not None and layout.world <= FEW:
        return ()
    groups: dict[Hashable, list[int]] = {}
    for d in range(layout.dp):
        rows = [
            [layout.rank(d, p, t) for t in range(layout.tp)] for p in range(layout.pp)
        ]
        marks = tuple(
            frozenset((speeds[rank] if speeds else None, rank == slow) for rank in row)
            for row in rows
        )
        if any(len(mark) > 1 for mark in marks):
            return ()  # tensor-parallel ranks that differ
        groups.setdefault(marks, []).append(d)
    if len(groups) > 1 and scenario.parallel.ep > 1:
        return ()
    return tuple(map(tuple, groups.values()))
