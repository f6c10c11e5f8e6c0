"""Bandwidth level by level, against the numbers of How to Scale Your Model, chapter 12."""

from __future__ import annotations

import pytest

from prestep.topologies import load_cluster
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers


def slowest(fabric: Fabric) -> float:
    """Bytes/s of an all-gather over all GPUs."""
    return min(tier.all_gather for tier in tiers(fabric))


def link(bandwidth: float) -> LinkSpec:
    return LinkSpec(
        Quantity(bandwidth, "guess", "a test"), Quantity(1e-6, "guess", "a test")
    )


def superpod(units: int, hosts: int, nvlink: float = 450e9) -> Fabric:
    """A DGX SuperPOD without CPUs: per unit `hosts` hosts of 8 GPUs under 8 leaves, all leaves under 16 spines."""
    graph = new_graph("superpod", "h100")
    spines = [add_node(graph, f"spine{at}", "spine") for at in range(16)]
    for unit in range(units):
        leaves = [add_node(graph, f"leaf{unit}.{at}", "leaf") for at in range(8)]
        for host in range(hosts):
            name = f"host{unit}.{host}"
            switch = add_node(graph, f"{name}/nvswitch", "nvswitch", name)
            for at, leaf in enumerate(leaves):
                gpu, nic = (
                    add_node(graph, f"{name}/gpu{at}", "gpu", name),
                    add_node(graph, f"{name}/nic{at}", "nic", name),
                )
                join(graph, gpu, switch, "nvlink", link(nvlink))
                join(graph, nic, gpu, "pcie", link(60e9))
                join(graph, nic, leaf, "nic", link(50e9))
        for leaf in leaves:
            for spine in spines:
                join(graph, leaf, spine, "spine", link(50e9), hosts // 16)
    return compile_graph(graph)


def test_a_superpod_of_1024_gpus_gathers_at_413_gb_per_second() -> None:
    """min(514, 413, 17,100) GB/s: eight GPUs at 450, 32 hosts at 400, four units at 12,800 GB/s."""
    fabric = superpod(units=4, hosts=32)
    assert [(tier.kind, tier.children, tier.egress) for tier in tiers(fabric)] == [
        ("nvswitch", 8, pytest.approx(450e9)),
        ("leaf", 32, pytest.approx(400e9)),
        ("spine", 4, pytest.approx(12.8e12)),
    ]
    assert [round(tier.all_gather / 1e9) for tier in tiers(fabric)] == [514, 413, 17067]
    assert slowest(fabric) == pytest.approx(412.9e9, rel=1e-3)


def test_a_b200_superpod_is_held_back_by_the_same_network() -> None:
    """Twice the NVLink, the same 400 GB/s out of a host."""
    fabric = superpod(units=2, hosts=32, nvlink=900e9)
    assert tiers(fabric)[0].all_gather == pytest.approx(900e9 * 8 / 7)
    assert slowest(fabric) == pytest.approx(412.9e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "egress", "total"),
    [
        ("dgx-a100", 300e9, 2.4e12),
        ("dgx-h100", 450e9, 3.6e12),
        ("dgx-h200", 450e9, 3.6e12),
        ("hgx-h800", 200e9, 1.6e12),
        ("dgx-b200", 900e9, 7.2e12),
    ],
)
def test_generations_of_nvlink(name: str, egress: float, total: float) -> None:
    """GPU to GPU bandwidth of Ampere, Hopper and Blackwell, and the bisection that follows from eight of them."""
    fabric = load_cluster(name)
    [tier] = tiers(fabric)
    assert (tier.kind, tier.children, tier.egress) == (
        "nvswitch",
        8,
        pytest.approx(egress),
    )
    assert bisection(fabric, ["nvlink"]) == pytest.approx(total)
    assert tiers(fabric, wire=False)[0].egress < egress


@pytest.mark.parametrize(
    ("name", "switches", "links"),
    [
        ("dgx-a100", 6, 12),
        ("dgx-h100", 4, 18),
        ("dgx-b200", 2, 18),
        ("gb200-nvl72", 18, 18),
    ],
)
def test_switches_and_links_of_each_generation(
    name: str, switches: int, links: int
) -> None:
    """NVSwitches per NVLink domain and ports per GPU (the same chapter's table)."""
    fabric = load_cluster(name)
    rows = [
        row
        for row in fabric.links.of_kind("nvlink")
        if fabric.links.src[row] == fabric.gpus[0]
    ]
    assert len(fabric.nodes.of_kind("nvswitch")) == len(rows) == switches
    assert fabric.links.count[rows].sum() == links


def test_hosts_of_one_network_are_a_tier() -> None:
    """Two p5 hosts: 400 GB/s each."""
    last = tiers(load_cluster("aws-p5", hosts=2))[-1]
    assert (last.kind, last.children, last.egress) == (
        "network",
        2,
        pytest.approx(400e9),
    )


def test_without_a_switch_there_is_no_tier() -> None:
    """Four GPUs joined directly."""
    assert tiers(load_cluster("gb200-nvl4")) == []
