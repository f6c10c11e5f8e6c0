"""Lowers a scenario to an operation graph: which ranks are simulated, and what each of them issues."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from prestep.sim.extras import lazily
from prestep.workloads.host_costs import host_costs
from prestep.workloads.job import JobSpec
from prestep.workloads.lowered import Layout, Lowered, Site
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.rank_step import CUBLAS_WORKSPACE, RankStep
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.run_block import RunBlock
from prestep.workloads.torch.simulated_rank import grid_of
from prestep.workloads.torch.tape import Tape

with lazily():
    from prestep.workloads.sharding import redundancy

Replicas = tuple[tuple[int, ...], ...]


#: Where nobody says the cluster.
ANYWHERE = Site(workspace=CUBLAS_WORKSPACE)


def lower(
    scenario: JobSpec,
    model: ModelSpec,
    site: Site = ANYWHERE,
    run_block: RunBlock | None = None,
) -> Lowered:
    """Runs every simulated rank's training step symbolically; `run_block` runs a block where its operators do not.

    Ranks that do the same are simulated once (data- and tensor-parallel copies), unless one of them is slow.
    """
    layout, costs = grid_of(scenario), _costs(scenario, site.host_factor)

    def step_of(rank: int, shared: Shared, replicas: Replicas) -> RankStep:
        tape = Tape(rank, shared, costs)
        of = scenario, model, layout, tape, replicas, run_block
        return RankStep(*of, site.workspace)

    replicas = _replicas(scenario, layout, site.speeds, step_of)
    represents, shared = _represents(layout, replicas), Shared()
    steps = {rank: step_of(rank, shared, replicas) for rank in represents}
    for step in steps.values():
        step.record()
    costs = next(iter(steps.values())).tape.costs
    return Lowered(
        shared.graph((step.tape.program() for step in steps.values()), represents),
        {rank: step.tape.memory for rank, step in steps.items()},
        {rank: step.tape.counts for rank, step in steps.items()},
        _parameters(layout, steps),
        layout,
        (site.host_factor, (site.workspace, *site.speeds)),
        tuple(p.stored_size for p in steps[min(steps)].model.stored_parameters()),
        launch=costs["launch"],
    )


def _costs(scenario: JobSpec, host_factor: float) -> dict[str, float]:
    """Seconds of host time by operation."""
    costs = host_costs(scenario.training.framework)
    return {name: time * host_factor for name, time in costs.items()}


def _represents(layout: Layout, replicas: Replicas) -> dict[int, tuple[int, ...]]:
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


def _in_parts(scenario: JobSpec) -> bool:
    """Whether replicas meet in groups of some of them."""
    p = scenario.parallel
    some = p.fsdp_shards not in (None, p.dp * p.cp)
    return p.ep > 1 or p.cp > 1 or some


def _deals_out_tensors(scenario: JobSpec) -> bool:
    """Whether each rank updates tensors of its own; DeepSpeed's shares are all alike."""
    eager = scenario.training.framework != "deepspeed-eager"
    return eager and scenario.parallel.data_parallel == "zero1"


# Ranks up to which all are simulated where one is slow or each updates other tensors: folding would spare little.
FEW = 16


def _replicas(
    scenario: JobSpec,
    layout: Layout,
    speeds: Sequence[Hashable],
    step_of: Callable[[int, Shared, Replicas], RankStep],
) -> Replicas:
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
    deals = _deals_out_tensors(scenario) and layout.dp > 1
    if deals and (len(groups) > 1 or layout.world <= FEW):
        return ()
    if _in_parts(scenario):
        return () if len(groups) > 1 else (tuple(range(layout.dp)),)
    if deals:
        return _by_share(layout, step_of)
    return tuple(map(tuple, groups.values()))


def _by_share(
    layout: Layout, step_of: Callable[[int, Shared, Replicas], RankStep]
) -> Replicas:
    """Replicas by the one whose optimizer has as much to do or more, which is the first of each group."""
    every = (tuple(range(layout.dp)),)
    of_stages = []
    for stage in range(layout.pp):
        step = step_of(layout.rank(0, stage, 0), Shared(), every)
        step.build()
        of_stages.append(redundancy.loads(step.model.parameters, layout.dp))
    loads = [sum(of, ()) for of in zip(*of_stages, strict=True)]
    heaviest = redundancy.representatives(loads)
    return tuple(
        (rank, *(d for d in every[0] if heaviest[d] == rank != d))
        for rank in dict.fromkeys(heaviest)
    )
