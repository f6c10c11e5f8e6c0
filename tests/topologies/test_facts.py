"""Published facts about whole machines, each from a named cluster as it is bundled."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers


def node_egress(fabric: Fabric) -> float:
    """Wire bytes/s out of all NICs of the first NVLink domain."""
    links = fabric.links
    first = [
        row
        for row in links.of_kind("nic")
        if fabric.nodes.kinds[fabric.node_index(str(links.src[row]))] == "nic"
    ]
    domain = "rack0" if "rack0/leaf0" in fabric.nodes.index else fabric.hosts[0]
    inside = [
        row
        for row in first
        if domain
        in (str(links.dst[row]).split("/")[0], fabric.host_of(str(links.src[row])))
    ]
    return float(links.raw[inside].sum())


@pytest.mark.parametrize(
    ("name", "hosts", "gpus", "gpu_egress", "egress"),
    [
        ("dgx-h100-superpod", 128, 8, 450e9, 400e9),
        ("dgx-b200-superpod", 128, 8, 900e9, 400e9),
        ("gb200-superpod-576", None, 72, 900e9, 3600e9),
    ],
)
def test_node_egress_of_each_generation(
    name: str, hosts: int | None, gpus: int, gpu_egress: float, egress: float
) -> None:
    """How to Scale Your Model, chapter 12: GPUs per node, egress of a GPU and of a node for H100, B200 and GB200."""
    fabric = load_cluster(name, hosts=hosts)
    [inner, *_] = tiers(fabric)
    assert (inner.children, inner.egress) == (gpus, pytest.approx(gpu_egress))
    assert node_egress(fabric) == pytest.approx(egress)


@pytest.mark.parametrize(
    ("name", "hosts", "levels"),
    [
        ("dgx-h100-superpod", 128, [514.3e9, 412.9e9, 17067e9]),
        ("dgx-b200-superpod", 128, [1028.6e9, 412.9e9, 17067e9]),
        ("gb200-superpod-576", None, [912.7e9, 4114.3e9]),
    ],
)
def test_collective_bandwidth_of_each_generation(
    name: str, hosts: int | None, levels: list[float]
) -> None:
    """The same chapter: bandwidth = min over levels of D W / (D - 1); B200 gains nothing over H100 between nodes."""
    fabric = load_cluster(name, hosts=hosts)
    assert [tier.all_gather for tier in tiers(fabric)] == pytest.approx(
        levels, rel=1e-3
    )


def test_full_bisection_of_1024_gpus() -> None:
    """128 hosts of 400 GB/s: 25.6 TB/s each way between the halves, over the spines."""
    links = load_cluster("dgx-h100-superpod", hosts=128).links
    up = [
        row for row in links.of_kind("spine") if str(links.src[row]).startswith("unit")
    ]
    assert links.raw[up].sum() == pytest.approx(128 * 400e9)


def test_bisection_of_hosts_and_racks() -> None:
    """3.6 TB/s for eight H100; 64.8 TB/s for the 72 GPUs of a rack."""
    assert bisection(load_cluster("dgx-h100"), ["nvlink"]) == pytest.approx(3.6e12)
    assert bisection(load_cluster("gb200-nvl72"), ["nvlink"]) == pytest.approx(64.8e12)


def test_the_576_gpu_superpod() -> None:
    """Eight racks of 18 trays: 576 GPUs, 288 CPUs, 144 NVSwitches, one 400 Gbit/s port for every GPU."""
    fabric = load_cluster("gb200-superpod-576")
    kinds = fabric.nodes.kinds
    assert [kinds.count(kind) for kind in ("gpu", "cpu", "nvswitch", "nic")] == [
        576,
        288,
        144,
        576,
    ]
    assert np.unique(fabric.links.raw[fabric.links.of_kind("nic")]).tolist() == [50e9]


def test_the_p5_host() -> None:
    """400 GB/s of EFA, and 14.2 GB/s from host memory to a GPU as measured."""
    fabric = load_cluster("aws-p5")
    assert node_egress(fabric) == pytest.approx(400e9)
    assert fabric.links.bandwidth[
        fabric.route("memory0", "gpu0")
    ].min() == pytest.approx(14.2e9)


@pytest.mark.parametrize(
    ("hosts", "switches"),
    [(128, (32, 16, 0)), (256, (64, 32, 0)), (512, (128, 128, 64))],
)
def test_superpods_of_1024_2048_and_4096_gpus(
    hosts: int, switches: tuple[int, int, int]
) -> None:
    """Leaves, spines and cores of the reference architecture's table."""
    fabric = load_cluster("dgx-b200-superpod", hosts=hosts)
    assert len(fabric.gpus) == 8 * hosts
    assert (
        tuple(fabric.nodes.kinds.count(kind) for kind in ("leaf", "spine", "core"))
        == switches
    )
