"""Leaf-spine: hosts under leaves, and the emulated clusters that were measured."""

from __future__ import annotations

import pytest

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.leaf_spine import Params, build
from tests.sample import together


@pytest.mark.parametrize(("hosts", "leaves"), [(2, 2), (4, 2), (6, 3), (8, 4)])
def test_every_host_hangs_under_one_leaf(hosts: int, leaves: int) -> None:
    """As many NIC links as NICs, in equal blocks; leaves joined by one link, or by a spine switch."""
    fabric = compile_graph(
        build(Params(hosts=hosts, leaves=leaves, gpus=1, nics=1, nvmes=0))
    )
    kinds = fabric.links.kind.tolist()
    assert len(fabric.gpus) == hosts and kinds.count("nic") == 2 * hosts
    assert kinds.count("spine") == (2 if leaves == 2 else 2 * leaves)


@pytest.mark.parametrize(
    ("name", "crosses"),
    [("h200-leafspine-4x1", (0, 2)), ("h200-leafspine-2x2", (0, 2))],
)
def test_only_traffic_between_leaves_uses_the_spine(
    name: str, crosses: tuple[int, int]
) -> None:
    """The route of two GPUs under different leaves goes over the spine, of two under one leaf (or host) does not."""
    fabric = load_cluster(name)
    far = fabric.route(fabric.gpus[crosses[0]], fabric.gpus[crosses[1]])
    near = fabric.route(fabric.gpus[0], fabric.gpus[1])
    assert "spine" in fabric.links.kind[far] and "spine" not in fabric.links.kind[near]


def test_hosts_must_divide_over_the_leaves() -> None:
    """Three hosts under two leaves is refused, and so is one host."""
    with pytest.raises(InputError, match="multiple of leaves"):
        compile_graph(build(Params(hosts=3, gpus=1, nics=1)))
    with pytest.raises(InputError, match="hosts"):
        compile_graph(build(Params(hosts=1, gpus=1, nics=1)))


def test_token_buckets_hide_pauses_but_no_bytes() -> None:
    """With shaped ports a collective takes as long as its bytes at the port's rate, or as its latency, never less."""
    cluster = load_cluster("h200-leafspine-4x1")
    facts = {key: fact for key, fact in cluster.facts.items() if key != "tcp"}
    fabric = cluster.with_facts("shaped", facts)
    plain = fabric.with_facts(
        "plain", {key: fact for key, fact in facts.items() if key != "token_bucket"}
    )
    for size in (2.0**4, 2.0**18, 2.0**22, 2.0**28):
        shaped = plan_collective("all_gather", size, fabric.gpus, fabric, Nccl())
        other = plan_collective("all_gather", size, plain.gpus, plain, Nccl())
        moving = other.duration(plain.links.bandwidth) - other.latency
        expected = max(moving, other.latency)
        assert shaped.duration(fabric.links.bandwidth) == pytest.approx(expected)


@together("name", ["h200-leafspine-4x1", "h200-leafspine-2x2"])
@together("megabytes", [8, 25, 64, 1000])
def test_shaping_ports_changes_neither_the_choice_nor_which_is_faster(
    name: str, megabytes: int
) -> None:
    """NCCL goes by what drivers report: on ports up to twice as fast it chooses the same, and takes no longer."""
    times, ways = [], set()
    for factor in ("0.25x", "0.5x", "0.9x", "1x", "1.5x", "2x"):
        overrides = {"nic.bandwidth": factor, "spine.bandwidth": factor}
        fabric = load_cluster(name, overrides=overrides)
        plan = plan_collective(
            "all_reduce", megabytes * 1e6, fabric.gpus, fabric, Nccl()
        )
        ways.add((plan.algo, plan.proto, plan.channels))
        times.append(plan.duration(fabric.links.bandwidth))
    assert len(ways) == 1
    assert times == sorted(times, reverse=True)
