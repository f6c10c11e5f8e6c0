"""Lowers a scenario to an operation graph: which ranks are simulated, and what each of them issues."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from prestep.sim.extras import lazily
from prestep.workloads.host_costs import host_costs
from prestep.workloads.job import JobSpec
from prestep.workloads.lowered import Lowered, Site, Unlike
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.folding import Grid, Kind, grid_of, kinds_of
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch.rank_step import CUBLAS_WORKSPACE, RankStep
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.run_block import RunBlock
from prestep.workloads.torch.tape import Tape

with lazily():
    from prestep.workloads.sharding import redundancy

Kinds = tuple[Kind, ...]

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
    grid, costs = grid_of(scenario), _costs(scenario, site.host_factor)

    def step_of(rank: int, shared: Shared, kinds: Kinds) -> RankStep:
        tape = Tape(rank, shared, costs)
        groups = Groups(grid, site.place, kinds, apart=not kinds)
        return RankStep(scenario, model, groups, tape, run_block, site.workspace)

    kinds, shared = _kinds(scenario, grid, site.speeds, step_of), Shared()
    firsts = [
        grid.rank(kind.replicas[0], p, 0) for kind in kinds for p in range(grid.pp)
    ]
    steps = [step_of(rank, shared, kinds) for rank in firsts or range(grid.world)]
    for step in steps:
        step.record()
    tapes = [step.tape for step in steps]
    return Lowered(
        shared.graph(
            (t.program() for t in tapes),
            {t.rank: tuple(steps[0].groups.alike(t.rank)) for t in tapes},
        ),
        {t.rank: t.memory for t in tapes},
        {t.rank: t.counts for t in tapes},
        _parameters(grid, steps),
        grid,
        (site.host_factor, (site.workspace, *site.speeds)),
        tuple(p.stored_size for p in steps[0].model.stored_parameters()),
        launch=costs["launch"],
    )


def _costs(scenario: JobSpec, host_factor: float) -> dict[str, float]:
    """Seconds of host time by operation."""
    costs = host_costs(scenario.training.framework)
    return {name: time * host_factor for name, time in costs.items()}


def _parameters(grid: Grid, steps: Sequence[RankStep]) -> int:
    """Parameters of the whole model: of the stages of one pipeline."""
    first = grid.pipeline(0)
    return sum(step.model.parameter_count for step in steps if step.tape.rank in first)


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


def _kinds(
    scenario: JobSpec,
    grid: Grid,
    speeds: Sequence[Hashable],
    step_of: Callable[[int, Shared, Kinds], RankStep],
) -> Kinds:
    """Data-parallel replicas that do the same, of which the first is simulated; empty: no two ranks are alike."""
    slow = scenario.faults.slow_rank
    if slow is not None and grid.world <= FEW:
        return ()

    marks = [(speeds[r] if speeds else None, r == slow) for r in range(grid.world)]
    alike = kinds_of(grid, Unlike(marks))
    stages = (grid.ranks(k.replicas, p) for k in alike for p in range(grid.pp))
    if any(len({marks[rank] for rank in ranks}) > 1 for ranks in stages):
        return ()  # ranks of a stage that work together and differ
    deals = _deals_out_tensors(scenario) and grid.dp * grid.cp > 1
    if len(alike) > 1 and (deals or _in_parts(scenario)):
        return ()
    if deals and grid.world <= FEW:
        return ()
    if deals and not _in_parts(scenario):
        return _by_share(grid, step_of)
    return tuple(alike)


def _by_share(grid: Grid, step_of: Callable[[int, Shared, Kinds], RankStep]) -> Kinds:
    """Replicas by the one whose optimizer has as much to do or more, which is the first of each kind."""
    every = tuple(range(grid.dp))
    of_stages = []
    for rank in grid.pipeline(0):
        step = step_of(rank, Shared(), (Kind(every),))
        step.build()
        of_stages.append(redundancy.loads(step.model.parameters, grid.dp))
    loads = [sum(of, ()) for of in zip(*of_stages, strict=True)]
    heaviest = redundancy.representatives(loads)
    return tuple(
        Kind((rank, *(d for d in every if heaviest[d] == rank != d)))
        for rank in dict.fromkeys(heaviest)
    )
