"""Lowers a scenario to an operation graph: which ranks are simulated, and what each of them issues."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sim.errors import InputError, Mistake
from sim.graph.opgraph import OpGraph
from workloads.host_costs import host_costs
from workloads.job import Job
from workloads.job.layout import axis_order
from workloads.lowered import Layout, Lowered
from workloads.models.model import ModelSpec
from workloads.torch.rank_step import RankStep, RunBlock
from workloads.torch.recorder import PHASES, Shared
from workloads.torch.tape import Tape


def layout_of(scenario: Job) -> Layout:
    """Where the ranks of a PyTorch run lie."""
    p = scenario.parallel
    return Layout(
        p.dp,
        p.pp,
        p.tp,
        tuple(axis for axis in axis_order(scenario) if axis in ("tp", "pp", "dp")),
    )


def lower(
    scenario: Job,
    model: ModelSpec,
    host_factor: float = 1.0,
    speeds: Sequence[Hashable] = (),
    run_block: RunBlock | None = None,
) -> Lowered:
    """Runs every simulated rank's training step symbolically; ``host_factor`` scales the framework's host costs.

    Ranks that do the same are simulated once (data- and tensor-parallel copies), unless one of them is slow.
    ``speeds`` tells ranks of unlike GPUs apart: equal ones are alike; empty, all are.
    ``run_block`` runs a block where its own operators do not.
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
        r: RankStep(
            scenario, model, layout, Tape(r, shared, costs), replicas, run_block
        )
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
    scenario: Job, layout: Layout, speeds: Sequence[Hashable]
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
