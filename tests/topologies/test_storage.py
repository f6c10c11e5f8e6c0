"""The storage fabric beside the compute fabric of a SuperPOD."""

from __future__ import annotations

import pytest

from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.core.kinds import STORAGE_LINKS
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers
from prestep.topologies.superpod import Params, build

POD = load_cluster("dgx-h100-superpod", hosts=64)


def test_the_route_in_the_docstring_is_the_route() -> None:
    """Host memory writes through its own socket's port, the unit's storage leaf, a spine and the servers' leaf."""
    rows = POD.route("host0/memory0", "storage0")
    assert [*POD.links.src[rows].tolist(), "storage0"] == [
        "host0/memory0",
        "host0/cpu0",
        "host0/storage_nic0",
        "unit0/storage_leaf0",
        "storage_spine0",
        "unit0/storage_leaf2",
        "storage0",
    ]


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("host33/memory1", "storage0"),
        ("host0/gpu7", "storage5"),
        ("storage7", "host2/gpu0"),
    ],
)
def test_every_host_reaches_every_server(src: str, dst: str) -> None:
    """Memory and GPUs, across units, in both directions; never over the compute fabric."""
    for rows, _ in POD.routes(src, dst):
        kinds = set(POD.links.kind[rows].tolist())
        assert kinds >= STORAGE_LINKS and not kinds & {"nic", "spine", "core", "nvlink"}


def test_a_unit_reads_125_and_writes_62_gb_per_second() -> None:
    """Table 6 of the reference architecture, best: read, written per unit; a node over 40 GB/s, at most 80."""
    links = POD.links
    server = links.of_kind("server")
    read = [row for row in server if str(links.src[row]).startswith("storage")]
    assert links.bandwidth[read].sum() == pytest.approx(2 * 125e9)
    assert links.bandwidth[server].sum() - links.bandwidth[read].sum() == pytest.approx(
        2 * 62e9
    )
    ports = [
        row
        for row in links.of_kind("storage")
        if str(links.src[row]).startswith("host0/")
    ]
    assert links.bandwidth[ports].sum() == pytest.approx(80e9)


def test_host_ports_are_oversubscribed_four_to_three() -> None:
    """Storage fabric of the reference architecture: near 4:3 towards the hosts, and no switch beyond 64 ports."""
    links = POD.links
    leaf = [
        row
        for row in links.of_kind("storage")
        if links.src[row] == "unit0/storage_leaf0"
    ]
    down = sum(links.count[row] for row in leaf if "host" in str(links.dst[row]))
    assert (down, sum(links.count[leaf]) - down) == (32, 24)
    fabric = load_cluster("dgx-h100-superpod", hosts=128)
    for spine in fabric.nodes.of_kind("storage_spine"):
        assert fabric.links.count[fabric.links.src == spine].sum() <= 64


def test_collectives_see_nothing_of_it() -> None:
    """Routes between GPUs, tiers and bisection are those of the pod without storage."""
    size = {
        "hosts": 8,
        "hosts_per_unit": 4,
        "ports": 8,
        "gpus": 4,
        "nics": 4,
        "gpus_per_pcie_switch": 1,
    }
    plain, stored = (
        compile_graph(build(Params(**size))),
        compile_graph(build(Params(**size, storage_servers=2, storage_spines=2))),
    )
    assert tiers(plain) == tiers(stored) and bisection(plain) == pytest.approx(
        bisection(stored)
    )
    for dst in ("host0/gpu1", "host1/gpu3", "host7/gpu2"):
        ways = [
            [
                fabric.links.dst[rows].tolist()
                for rows, _ in fabric.routes("host0/gpu0", dst)
            ]
            for fabric in (plain, stored)
        ]
        assert ways[0] == ways[1]


def test_the_disks_of_a_p5_are_on_the_graph() -> None:
    """Each under the PCIe switch of its GPU: read without the CPU."""
    fabric = load_cluster("aws-p5")
    rows = fabric.route("nvme3", "gpu3")
    assert fabric.links.src[rows].tolist() == ["nvme3", "pcieswitch3"]


def test_no_wire_is_slower_than_its_payload() -> None:
    """A link of any bundled cluster carries at most what its wire does, a disk's in both directions."""
    slow = [
        name
        for name in cluster_names()
        for links in [load_cluster(name).links]
        if (links.raw < links.bandwidth * (1 - 1e-9)).any()
    ]
    assert slow == []
