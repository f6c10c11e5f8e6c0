"""What a cluster file says of its network changes what runs between hosts, and nothing inside them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.collectives import machine
from prestep.sim.collectives.algorithms import tree
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires.network import Network
from prestep.sim.errors import InputError
from prestep.sim.predict import step_time
from prestep.sim.spec.load import parse_scenario
from prestep.topologies import load_cluster
from prestep.topologies.core.quantity import Quantity

OLD = Nccl(version="2.27.5")


def seconds(op: str, size: float, fabric: Any, wanted: Nccl = OLD) -> float:
    plan = plan_collective(op, size, fabric.gpus, fabric, wanted)
    return plan.duration(fabric.links.bandwidth)


def with_facts(**said: float):  # type: ignore[no-untyped-def]
    return with_hosts(2, **said)


def with_hosts(hosts: int, **said: float):  # type: ignore[no-untyped-def]
    fabric = load_cluster("rail-h100", hosts)
    facts = {key: Quantity(value, "guess", "a test") for key, value in said.items()}
    return fabric.with_facts(fabric.name, dict(fabric.facts) | facts)


def test_a_file_that_says_nothing_changes_nothing() -> None:
    """Without facts of the network there are none, and the plans are the old ones."""
    fabric = load_cluster("rail-h100", 2)
    network, amount = group_of(fabric, fabric.gpus).network, 2.0**20
    for proto in ("LL", "LL128", "Simple"):
        assert network.hop(proto) is None
        assert network.posting(proto) == network.agreed(proto, amount, 8) == 0.0
        assert network.copied(proto, amount) == Network().copied(proto, amount) == 0.0
    assert seconds("all_reduce", 2**20, with_facts()) == seconds(
        "all_reduce", 2**20, fabric
    )


@pytest.mark.parametrize(
    ("op", "size", "slower"),
    [
        ("all_reduce", 2**30, {"net_share": 0.5}),
        ("all_to_all", 2**30, {"net_pairs_share": 0.5}),
        ("all_reduce", 8, {"net_ll": 1e-4}),
        ("all_to_all", 2**10, {"net_message": 1e-5}),
        ("all_to_all", 2**10, {"net_inject": 1e-5}),
        ("all_gather", 2**25, {"net_post": 1e-4}),
        ("all_gather", 2**12, {"net_post_ll": 1e-5}),
        ("sendrecv", 2**28, {"net_channel": 1e9}),
        ("all_gather", 2**20, {"net_eager": 1.0, "net_rendezvous": 1e-4}),
    ],
)
def test_every_fact_slows_what_it_is_about(
    op: str, size: int, slower: dict[str, float]
) -> None:
    """Half of the port, longer steps and slower channels make collectives between hosts take longer, inside not."""
    assert seconds(op, size, with_facts(**slower)) > 1.1 * seconds(
        op, size, with_facts()
    )
    near = with_facts(**slower)
    alone = [
        gpu for gpu in near.gpus if near.host_of(gpu) == near.host_of(near.gpus[0])
    ]
    plain = with_facts()
    mine, others = (
        plan_collective(op, size, alone, f, OLD).duration(f.links.bandwidth)
        for f in (near, plain)
    )
    assert mine == pytest.approx(others)


def test_messages_between_pairs_have_a_share_of_their_own() -> None:
    """Where only messages get less of the ports, an all-reduce keeps its time."""
    assert seconds("all_reduce", 2**30, with_facts(net_pairs_share=0.5)) == seconds(
        "all_reduce", 2**30, with_facts()
    )


def test_proxies_cost_by_the_number_of_peers() -> None:
    """The smallest all-to-all grows by the proxy's time for every rank of another host."""
    for hosts, peers in ((2, 8), (4, 24)):
        slow, quick = (
            seconds("all_to_all", 64 * hosts, with_hosts(hosts, net_message=cost))
            for cost in (7e-6, 2e-6)
        )
        assert slow - quick == pytest.approx(5e-6 * peers)


def test_a_rings_proxy_posts_for_every_rank_and_channel() -> None:
    """Where posting bounds a ring, each rank more is a message more for every channel."""

    def gathered(hosts: int, post: float) -> float:
        return seconds("all_gather", 512 * hosts, with_hosts(hosts, net_post_ll=post))

    dear, twice = (gathered(2, post) for post in (1e-4, 2e-4))
    assert twice - dear == pytest.approx(1e-4 * 15)
    assert gathered(4, 1e-4) - dear == pytest.approx(1e-4 * 16, rel=1e-2)


@pytest.mark.parametrize("bandwidth", ["1.2x", "1.5x", "2x", "4x"])
def test_faster_pcie_slows_no_ring_that_shares_its_nic(bandwidth: str) -> None:
    """Messages are posted while bytes move: of groups that share NICs, none waits for its proxies on top of that."""
    tables: dict[str, Any] = {
        "cluster": {"name": "alcf-polaris", "hosts": 2},
        "model": {"kind": "transformer", "hidden": 512, "layers": 2, "heads": 8}
        | {"kv_heads": 8, "ffn": 2048, "vocab": 32000, "gated": True},
        "training": {"framework": "deepspeed", "micro_batch": 2, "seq_len": 512}
        | {"grad_accumulation": 2},
        "parallel": {"dp": 2, "tp": 4, "data_parallel": "fsdp"},
    }
    plain = step_time(parse_scenario(tables, "shared"))
    tables["cluster"]["set"] = {"pcie.bandwidth": bandwidth}
    assert step_time(parse_scenario(tables, "shared")) <= plain * (1 + 1e-9)


def test_only_the_smallest_messages_are_copied_by_the_cpu() -> None:
    """Parts of more than 192 bytes cost the proxy nothing more, smaller ones as much for each peer."""
    plain, copied = with_facts(), with_facts(net_inject=1e-5)
    small, large = 16 * 128, 16 * 1024
    more = seconds("all_to_all", small, copied) - seconds("all_to_all", small, plain)
    assert more == pytest.approx(8e-5)
    assert seconds("all_to_all", large, copied) == seconds("all_to_all", large, plain)


@pytest.mark.parametrize("name", ["dgx-h100-superpod", "rail-h100", "roce-h100"])
def test_all_to_alls_take_longer_over_more_hosts_whatever_the_network(
    name: str,
) -> None:
    """Every host more is eight messages more for the proxy of every rank, on InfiniBand and RoCE, said or not."""
    times = [
        seconds("all_to_all", 65536, load_cluster(name, hosts))
        for hosts in (2, 4, 8, 16)
    ]
    more = [b - a for a, b in itertools.pairwise(times)]
    assert all(step > 8 * 4e-6 * k for step, k in zip(more, (2, 4, 8), strict=True))


def test_amd_hosts_move_nccls_choice() -> None:
    """NCCL's model holds rings with LL to be worse on AMD hosts: it leaves LL at smaller sizes there."""

    def protos(amd: float) -> list[str]:
        fabric = with_facts(amd_cpu=amd)
        return [
            plan_collective("all_gather", 2**k, fabric.gpus, fabric, OLD).proto
            for k in range(10, 24)
        ]

    assert protos(1.0).count("LL") < protos(0.0).count("LL")


@pytest.mark.parametrize(
    ("hosts", "edges"), [(1, 0), (2, 1), (3, 2), (4, 2), (10, 4), (16, 4), (17, 5)]
)
def test_depth_of_a_tree_is_that_of_its_pairs(hosts: int, edges: int) -> None:
    """The depth is the number of parents of the deepest host in NCCL's binary tree."""
    parent = dict(tree.binary_tree(hosts))
    deepest = 0
    for host in range(hosts):
        steps = 0
        while host in parent:
            host, steps = parent[host], steps + 1
        deepest = max(deepest, steps)
    assert tree.depth(hosts) == deepest == edges


def test_trees_start_beside_every_nic() -> None:
    """With four NICs for eight GPUs the chains of a host begin at GPUs of four different NICs."""
    host = tuple(f"gpu{k}" for k in range(8))
    assert [tree.turned(host, k, 4)[0] for k in range(4)] == [
        "gpu0",
        "gpu2",
        "gpu4",
        "gpu6",
    ]
    fabric = load_cluster("aws-p4de", 2)
    plan = plan_collective(
        "all_reduce", 2**30, fabric.gpus, fabric, replace(OLD, algo="tree")
    )
    used = {fabric.links.src[i] for i in plan.links if fabric.links.kind[i] == "nic"}
    assert {f"host{h}/nic{k}" for h in range(2) for k in range(4)} <= used


@pytest.mark.parametrize(
    ("hosts", "channels"), [(2, 2), (4, 2), (5, 1), (8, 1), (16, 1)]
)
def test_a_message_on_p5_loses_a_channel_beyond_four_hosts(
    hosts: int, channels: int
) -> None:
    """NCCL 2.21 to 2.28: two channels per message up to 4 x 16 / 2 = 32 ranks, then one, unless two are asked for."""
    fabric = load_cluster("aws-p5", hosts)
    group = group_of(fabric, fabric.gpus, OLD)
    assert search(group, fabric.gpu_model, OLD).per_peer == channels
    asked = replace(OLD, nchannels_per_net_peer=2)
    assert (
        search(group_of(fabric, fabric.gpus, asked), fabric.gpu_model, asked).per_peer
        == 2
    )


@pytest.mark.parametrize(
    ("wanted", "channels"),
    [({}, 16), ({"min_p2p_nchannels": 32}, 32), ({"max_p2p_nchannels": 5}, 8)],
)
def test_messages_have_channels_of_their_own(
    wanted: dict[str, int], channels: int
) -> None:
    """NCCL_MIN_P2P_NCHANNELS and its limit bound those of messages alone, of which there is a power of two."""
    fabric = load_cluster("aws-p5", 4)
    asked = replace(OLD, **wanted)
    found = search(group_of(fabric, fabric.gpus, asked), fabric.gpu_model, asked)
    usual = search(group_of(fabric, fabric.gpus, OLD), fabric.gpu_model, OLD)
    assert found.p2p == channels
    assert found.count == usual.count


def test_more_nics_than_channels() -> None:
    """The search stops at 32 channels: a rack of 72 NICs does not get 72."""
    fabric = load_cluster("gb200-superpod-576", 36)
    assert search(group_of(fabric, fabric.gpus, OLD), fabric.gpu_model, OLD).count <= 32


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'net_share = { value = 1.5, evidence = "guess", source = "a test" }',
            "at most 1",
        ),
        ('net_share = { value = 0, evidence = "guess", source = "a test" }', "above 0"),
        (
            'net_ll = { value = "fast", evidence = "guess", source = "a test" }',
            "net_ll",
        ),
        (
            'net_fast = { value = 1, evidence = "guess", source = "a test" }',
            "unknown key",
        ),
    ],
)
def test_wrong_facts_are_refused(tmp_path: Path, line: str, expected: str) -> None:
    """A share beyond 1, a time that is none and an unknown fact are mistakes of the cluster file."""
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "rail-h100"\n{line}\n')
    with pytest.raises(InputError, match=expected):
        load_cluster(str(path))


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200", "dgx-a100"])
def test_calls_in_one_stream_take_no_longer_than_a_programs(name: str) -> None:
    """nccl-tests saves what its GPU's constants say of streams, once a call, and nothing where they are nccl-tests'."""
    fabric = load_cluster(name)
    for size in (8.0, 2.0**20, 2.0**30):
        plan = plan_collective("all_reduce", size, fabric.gpus, fabric)
        tested = machine.as_tested(plan, fabric)
        saved = plan.latency - tested.latency
        assert saved == pytest.approx(machine.of(fabric).streams)
        assert tested.rate_cap == plan.rate_cap
