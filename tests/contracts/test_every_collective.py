"""What every collective algorithm keeps to, found by its file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import pytest

from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.plan import OPS, Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.plugins import load, providers
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.fabric import Fabric
from tests.sample import together

ALGORITHMS = sorted(
    name
    for name in providers("prestep.sim.collectives.algorithms", "plan")
    if name not in ("plan", "gloo", "one_sided", "shots")
)
# Not NCCL's: on the CPU (Gloo stages buffers in host memory), or kernels of others.
OTHERS = ("gloo", "one_sided", "shots")
CLUSTERS = ("h200-host-2", "h200-host-4", "dgx-h200")
SIZES = (8.0, 2.0**16, 2.0**24, 2.0**32)
NVLS = Nccl(nvls=True, collnet=True)  # what switches can do, they may
# Where switches add up, a GPU need not pass on what others contributed.
IN_NETWORK = ("nvls", "collnet")


@lru_cache
def cluster(name: str) -> Fabric:
    """A bundled cluster; "x2" after its name is two hosts of it."""
    plain = name.removesuffix(" x2")
    if plain == name:
        return load_cluster(plain)
    fabric = load_cluster(plain, hosts=2)
    return fabric.with_facts(
        name,
        {
            **fabric.facts,
            "sharp": Quantity(1.0, "guess", "switches that can do everything"),
        },
    )


@lru_cache
def several_hosts() -> list[str]:
    """Two hosts of every bundled cluster whose family scales."""
    found = []
    for name in cluster_names():
        try:
            found.append(cluster(f"{name} x2").name and f"{name} x2")
        except InputError:
            continue
    return found


def plans(algorithm: str, op: str, name: str) -> list[Plan]:
    """The algorithm's plans of all sizes; none where it says that it cannot."""
    fabric, module = (
        cluster(name),
        load("prestep.sim.collectives.algorithms", algorithm),
    )
    if hasattr(module, "runs_on") and module.runs_on(
        op, group_of(fabric, fabric.gpus), fabric, NVLS
    ):
        return []
    try:
        return [module.plan(call_of(op, size, fabric.gpus, fabric)) for size in SIZES]
    except InputError:
        return []


def cases(algorithms: Sequence[str]) -> list[tuple[str, str, str]]:
    pairs = itertools.product(algorithms, CLUSTERS)
    return [
        (algorithm, op, name)
        for algorithm, name in pairs
        for op in load("prestep.sim.collectives.algorithms", algorithm).OPS
    ]


CASES = cases(ALGORITHMS)


def least(algorithm: str, op: str, n: int) -> tuple[float, float]:
    """Payload bytes that must leave, and reach, all GPUs together per byte of the operation's size (nccl-tests')."""
    if algorithm.startswith(IN_NETWORK):
        all_of_it = float(
            n - 1
        )  # a switch that adds gets it from everyone; one that copies gives it to everyone
        once = {"all_gather": (1.0, all_of_it), "broadcast": (1.0, all_of_it)}
        return once.get(
            op,
            (all_of_it, 1.0)
            if "reduce" in op and op != "all_reduce"
            else (all_of_it, all_of_it),
        )
    host = {"all_reduce": 2.0 * (n - 1), "send": 1.0, "recv": 1.0, "sendrecv": float(n)}
    host |= dict.fromkeys(("gather", "scatter"), (n - 1) / n)
    return (host.get(op, n - 1.0),) * 2


@together(("algorithm", "op", "name"), CASES)
def test_no_plan_sends_less_than_the_operation_needs(
    algorithm: str, op: str, name: str
) -> None:
    """What leaves and what reaches the GPUs is at least the lower bound; without help of switches both are equal."""
    fabric = cluster(name)
    gpus = set(fabric.gpus)
    for plan in plans(algorithm, op, name):
        ends = [
            (str(fabric.links.src[at]), str(fabric.links.dst[at])) for at in plan.links
        ]
        assert (plan.usage > 0).all() and len(set(plan.links.tolist())) == len(
            plan.links
        )
        out = sum(
            u for (src, _), u in zip(ends, plan.usage, strict=True) if src in gpus
        )
        into = sum(
            u for (_, dst), u in zip(ends, plan.usage, strict=True) if dst in gpus
        )
        sent, received = least(algorithm, op, len(gpus))
        assert out >= sent * (1 - 1e-9) and into >= received * (1 - 1e-9)
        assert algorithm.startswith(IN_NETWORK) or out == pytest.approx(into)


@together(("algorithm", "op", "name"), CASES + cases(OTHERS))
def test_every_plan_takes_time(algorithm: str, op: str, name: str) -> None:
    """Positive latency, channels and rate; never faster than its links; more bytes cost more; it says its evidence."""
    bandwidth = cluster(name).links.bandwidth
    found = plans(algorithm, op, name)
    for plan in found:
        assert plan.op == op and plan.latency > 0 and plan.rate_cap > 0
        assert (1 if algorithm in ALGORITHMS else 0) <= plan.channels <= 64
        assert plan.evidence in ("measured", "fitted", "datasheet", "guess")
        busiest = (plan.usage / bandwidth[plan.links]).max()
        assert plan.duration(bandwidth) >= (plan.latency + plan.size * busiest) * (
            1 - 1e-9
        )
    assert found == [] or found[0].duration(bandwidth) < found[-1].duration(bandwidth)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_runs_somewhere(algorithm: str) -> None:
    """Its OPS are operations that exist, and a bundled host, or two of them, runs each."""
    module = load("prestep.sim.collectives.algorithms", algorithm)
    assert module.OPS and set(module.OPS) <= set(OPS)
    for op in module.OPS:
        assert any(plans(algorithm, op, name) for name in (*CLUSTERS, *several_hosts()))


def test_every_operation_has_an_algorithm() -> None:
    """No operation of the table is without a plan."""
    assert {
        op
        for algorithm in ALGORITHMS
        for op in load("prestep.sim.collectives.algorithms", algorithm).OPS
    } == set(OPS)
