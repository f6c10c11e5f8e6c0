"""Lowers a scenario to an operation graph: which ranks are simulated, and what each of them issues."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from sim.graph.opgraph import OpGraph
from workloads.host_costs import host_costs
from workloads.job import Job
from workloads.lowered import Layout, Lowered
from workloads.models.model import ModelSpec
from workloads.torch.grid import grid_of
from workloads.torch.rank_step import RankStep
from workloads.torch.recorder import PHASES, Shared
from workloads.torch.run_block import RunBlock
from workloads.torch.tape import Tape


def lower(
    scenario: Job,
    model: ModelSpec,
    host_factor: float = 1.0,
    speeds: Sequence[Hashable] = (),
    run_block: RunBlock | None = None,
) -> Lowered:
    """Runs every simulated rank's training step symbolically.

    Ranks that do the same are simulated once (data- and tensor-parallel copies), unless one of them is slow.

    Parameters
    ----------
    scenario : Job
    model : ModelSpec
    host_factor : float
        Scales the framework's host costs.
    speeds : sequence
        Of every rank's GPU, equal for GPUs that are alike; empty: all are.
    run_block : RunBlock, optional
        Runs a block where its own operators do not.
    """
    layout = grid_of(scenario)
    replicas = _replicas(scenario, layout, speeds)
    represents = _represents(layout, replicas)
    shared, costs = Shared(), _costs(scenario, host_factor)
    steps = {
        rank: RankStep(
            scenario, model, layout, Tape(rank, shared, costs), replicas, run_block
        )
        for rank in represents
    }
    for step in steps.values():
        step.record()
    return Lowered(
        _graph(steps, shared, represents),
        {rank: step.tape.memory for rank, step in steps.items()},
        {rank: step.tape.counts for rank, step in steps.items()},
        _parameters(layout, steps),
        layout,
        (host_factor, speeds),
        tuple(p.stored_size for p in steps[min(steps)].model.stored_parameters()),
    )


def _graph(
    steps: Mapping[int, RankStep],
    shared: Shared,
    represents: dict[int, tuple[int, ...]],
) -> OpGraph:
    """The recorded programs with their common tables."""
    return OpGraph(
        tuple(step.tape.program() for step in steps.values()),
        tuple(shared.kernels),
        tuple(shared.rendezvous.comms),
        tuple(shared.streams),
        PHASES,
        represents,
    )


def _costs(scenario: Job, host_factor: float) -> dict[str, float]:
    """Seconds of host time by operation."""
    costs = host_costs(scenario.training.framework)
    return {name: time * host_factor for name, time in costs.items()}


def _represents(
    layout: Layout, replicas: tuple[tuple[int, ...], ...]
) -> dict[int, tuple[int, ...]]:
    """Simulated rank -> the ranks that it stands for, itself among them."""
    if not replicas:
        return {rank: (rank,) for rank in range(layout.world)}
    return {
        layout.rank(alike[0], stage, 0): tuple(
            layout.rank(d, stage, t) for d in alike for t in range(layout.tp)
        )
        for alike in replicas
        for stage in range(layout.pp)
    }


def _parameters(layout: Layout, steps: Mapping[int, RankStep]) -> int:
    """Parameters of the whole model: of the stages of one pipeline."""
    return sum(
        step.model.parameter_count
        for rank, step in steps.items()
        if layout.where(rank)[0] == layout.where(rank)[2] == 0
    )


def _in_parts(scenario: Job) -> bool:
    """Whether replicas meet in groups of some of them, or have different things to do."""
    p = scenario.parallel
    some = p.fsdp_shards not in (None, p.dp * p.cp)
    return p.ep > 1 or p.cp > 1 or p.data_parallel == "zero1" or some


FEW = 16  # ranks up to which all are simulated when one of them is slow: folding would spare nothing


def _replicas(
    scenario: Job, layout: Layout, speeds: Sequence[Hashable]
) -> tuple[tuple[int, ...], ...]:
    """Data-parallel replicas that do the same, of which the first is simulated; empty: no two ranks are alike."""
    slow = scenario.faults.slow_rank
    if slow is not None and layout.world <= FEW:
        return ()

    def mark(rank: int) -> Hashable:
        return (speeds[rank] if speeds else None, rank == slow)

    groups: dict[Hashable, list[int]] = {}
    for d in range(layout.dp):
        stages = tuple(
            frozenset(mark(layout.rank(d, p, t)) for t in range(layout.tp))
            for p in range(layout.pp)
        )
        if any(len(marks) > 1 for marks in stages):
            return ()  # tensor-parallel ranks that differ
        groups.setdefault(stages, []).append(d)
    if len(groups) > 1 and _in_parts(scenario):
        return ()
    return tuple(map(tuple, groups.values()))
