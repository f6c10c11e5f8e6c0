"""A collective alone takes the same time wherever it is asked for: engine, table, serving, replay and intervals."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim import plugins
from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.interval import interval_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs.measured import gpu_of
from prestep.sim.engine.engine import execute
from prestep.sim.errors import InputError
from prestep.sim.exchanges import table
from prestep.sim.graph.opgraph import Comm
from prestep.sim.lowering import job_of, machine_of
from prestep.sim.planning import planned as step
from prestep.sim.serving import serving
from prestep.sim.serving.pools import WEIGHT, Pools
from prestep.sim.serving.section import Inference
from prestep.sim.spec.sections import Scenario
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.lowered import Layout, Lowered
from prestep.workloads.models.model import load_model
from tests.sample import sample, together
from tests.sim.graphs import Op, graph

FAMILIES = sorted(plugins.providers("prestep.topologies", "build"))
# Everything that switches can do, they may; NCCL refuses by force what cannot run.
ABLE = Nccl(nvls=True, collnet=True)
FACTS = {
    "sharp": Quantity(1.0, "guess", "so that CollNet runs"),
    "nvlink_sharp": Quantity(1.0, "guess", "so that NVLS runs"),
}
CASES = [(algo, op) for algo, module in algorithms().items() for op in module.OPS]
CASES += [("", op) for op in ("all_to_all", "send", "sendrecv", "gather", "scatter")]
MODEL = load_model(Model(name="llama3-8b"))
REL = 1e-9


@cache
def small(family: str) -> Fabric:
    """Two hosts of a family that scales."""
    module = plugins.load("prestep.topologies", family)
    scales = "hosts" in {entry.name for entry in dataclasses.fields(module.Params)}
    fabric: Fabric = compile_graph(
        module.build(module.Params(hosts=2) if scales else module.Params())
    )
    return fabric.with_facts(fabric.name, {**fabric.facts, **FACTS})


def groups(fabric: Fabric) -> list[tuple[str, ...]]:
    """All GPUs of one host, of two, and one GPU of each."""
    of_host = [
        tuple(gpu for gpu in fabric.gpus if fabric.host_of(gpu) == host)
        for host in fabric.hosts[:2]
    ]
    several = (of_host[0], sum(of_host, ()), tuple(host[0] for host in of_host if host))
    return [gpus for gpus in dict.fromkeys(several) if len(gpus) > 1]


def in_the_engine(
    op: str, size: float, gpus: tuple[str, ...], fabric: Fabric, nccl: Nccl
) -> float:
    """Seconds from the last rank's arrival to the end of a step that is this collective and nothing else."""
    ranks = tuple(range(len(gpus)))
    scenario = Scenario(parallel=Parallel(dp=len(gpus)), nccl=nccl)
    made = graph(
        [[Op("nccl", comms=(0,))] for _ in ranks],
        [Comm(op, size, (ranks,), "dp", len(ranks))],
    )
    lowered = Lowered(made, {}, {}, 0, Layout(dp=len(gpus), pp=1, tp=1))
    machine = machine_of(scenario, MODEL, fabric, gpus)
    job = job_of(scenario, MODEL, machine, lowered)
    done = execute(step.planned(job, machine, MODEL, lowered), 1)
    # The sender of a message may leave while its last bytes are on their way: the last rank to leave counts.
    return float(max(end[0, 0] for end in done.end) - done.ready[0][0])


def planned(
    op: str, size: float, gpus: tuple[str, ...], fabric: Fabric, nccl: Nccl
) -> Plan | None:
    """The plan, or None where NCCL refuses it."""
    try:
        return plan_collective(op, size, gpus, fabric, nccl)
    except InputError:
        return None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("algo", "op"), sample(CASES, 3))
def test_every_way_to_an_idle_collective_gives_one_time(
    family: str, algo: str, op: str
) -> None:
    """For each algorithm on each family, on one host and on two, small and large."""
    nccl = dataclasses.replace(ABLE, algo=algo or None)
    fabric = small(family)
    for gpus in groups(fabric):
        for size in (2.0**12, 2.0**26):
            agree(op, size, gpus, fabric, nccl)


def agree(
    op: str, size: float, gpus: tuple[str, ...], fabric: Fabric, nccl: Nccl
) -> None:
    """The plan's own time is the engine's, the table's and the middle of the interval."""
    plan = planned(op, size, gpus, fabric, nccl)
    if plan is None:
        return
    alone = plan.duration(fabric.links.bandwidth)
    assert in_the_engine(op, size, gpus, fabric, nccl) == pytest.approx(alone, rel=REL)
    (row,) = table.sweep(
        fabric, op=op, gpus=gpus, min_bytes=size, max_bytes=size, nccl=nccl
    )
    assert row.plan.size != size or row.time_in_step == alone
    interval = interval_of(plan, fabric)
    assert interval.low < alone < interval.high


@together("family", FAMILIES)
def test_serving_reduces_in_the_time_of_the_table(family: str) -> None:
    """The all-reduces of a tensor-parallel worker, of few tokens and of many."""
    fabric = small(family)
    scenario = Scenario(extensions={"inference": Inference()}, nccl=ABLE)
    for gpus in groups(fabric):
        pools = Pools(scenario, fabric, MODEL, gpu_of(fabric), (gpus,), (gpus,))
        for tokens in (1, 4096):
            size = tokens * MODEL.hidden * WEIGHT
            plan = plan_collective("all_reduce", size, gpus, fabric, ABLE)
            assert serving.reduce_time(pools, tokens, gpus) == plan.duration(
                fabric.links.bandwidth
            )


@given(st.sampled_from(FAMILIES), st.sampled_from(CASES), st.floats(1.0, 2.0**32))
def test_any_size_has_one_time(family: str, case: tuple[str, str], size: float) -> None:
    """Not only powers of two: bytes that no rank's part divides as well."""
    algo, op = case
    fabric = small(family)
    for gpus in groups(fabric):
        agree(
            op,
            float(int(size)),
            gpus,
            fabric,
            dataclasses.replace(ABLE, algo=algo or None),
        )


@pytest.mark.parametrize("algo", algorithms())
def test_no_algorithm_is_left_out(algo: str) -> None:
    """The law above is not empty for it: some family runs it."""
    nccl = dataclasses.replace(ABLE, algo=algo)
    op = algorithms()[algo].OPS[0]
    fabrics = [small(family) for family in FAMILIES]
    plans = [
        planned(op, 2.0**26, gpus, fabric, nccl)
        for fabric in fabrics
        for gpus in groups(fabric)
    ]
    assert any(plan is not None and plan.algo == algo for plan in plans)
