"""The search for channels: NCCL's own dumps and logs, the bundled machines, and laws of what it finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl import searched
from prestep.sim.collectives.nccl.graphs import RING, compute
from prestep.sim.collectives.nccl.search import search, switched
from prestep.sim.collectives.nccl.system import of_parts, parts_of
from prestep.sim.collectives.nccl.walk import Walk
from prestep.sim.collectives.nccl.ways import SYS, TYPES
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.exchanges import log_lines
from prestep.topologies import load_cluster
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from tests.sim.hosts import cluster, logged

LOGS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "nccl-logs.json").read_text(encoding="utf-8")
)
SLOT = LinkSpec(
    Quantity(24e9, "guess", "test"),
    Quantity(1e-6, "guess", "test"),
    raw=Quantity(31.5e9, "guess", "test"),
)
SOCKET = LinkSpec(Quantity(16e9, "guess", "test"), Quantity(1e-6, "guess", "test"))
BRIDGE = LinkSpec(
    Quantity(20e9, "guess", "test"),
    Quantity(1e-6, "guess", "test"),
    raw=Quantity(25e9, "guess", "test"),
)


def graphs_of(
    fabric: Fabric, gpus: Sequence[str] = (), wanted: Nccl | None = None
) -> tuple[Group, searched.Graphs]:
    group = group_of(fabric, gpus or fabric.gpus, wanted or Nccl())
    return group, searched.on_host(group, fabric, wanted or Nccl(), group.hosts[0])


def pcie_host(
    sockets: Sequence[int], bridges: Sequence[tuple[int, int]] = ()
) -> Fabric:
    """A100s in PCIe slots: so many on one switch of each socket; pairs may have NVLink bridges."""
    graph = new_graph("pcie", "a100", "test")
    total = sum(sockets)
    for gpu in range(total):
        add_node(graph, f"gpu{gpu}", "gpu", "host0")
    at = 0
    for socket, count in enumerate(sockets):
        cpu = add_node(graph, f"cpu{socket}", "cpu", "host0")
        join(
            graph,
            cpu,
            add_node(graph, f"memory{socket}", "memory", "host0"),
            "memory",
            SOCKET,
        )
        switch = add_node(graph, f"pcieswitch{socket}", "pcieswitch", "host0")
        join(graph, cpu, switch, "pcie", SLOT)
        for gpu in range(at, at + count):
            join(graph, switch, f"gpu{gpu}", "pcie", SLOT)
        at += count
        if socket:
            join(graph, "cpu0", cpu, "socket", SOCKET)
    for a, b in bridges:
        join(graph, f"gpu{a}", f"gpu{b}", "nvlink", BRIDGE, 12)
    return compile_graph(graph)


@pytest.mark.parametrize("case", ["2", "4", "2x2", "4x1"])
def test_the_search_answers_what_nccl_dumped(case: str) -> None:
    """Pattern, channels and speeds of ring and tree, of NCCL's graph dumps; the tree of two GPUs goes both ways."""
    _, graphs = graphs_of(logged(case))
    ring, tree, log = graphs.ring, graphs.tree, LOGS[case]["graph"]
    assert [ring.pattern, ring.count, ring.inside, ring.between] == log["ring"]
    assert [tree.pattern, tree.count, tree.inside, tree.between] == log["tree"]
    n = len(graphs.ring.orders[0])
    assert set(ring.orders) == {tuple(range(n))}
    assert ring.same and tree.same == (case != "2")
    types = {"2": "NVL/PIX", "4": "NVL/PIX", "2x2": "NVL/PHB", "4x1": "LOC/PHB"}[case]
    assert f"{TYPES[ring.type_inside]}/{TYPES[ring.type_between]}" == types
    if case == "2":
        assert tree.orders == ((0, 1),) * 6 + ((1, 0),) * 6


@pytest.mark.parametrize("case", ["2", "4", "2x2", "4x1"])
def test_rings_and_trees_are_the_log_s_line_by_line(case: str) -> None:
    """The "Channel" lines and every rank's parent on every channel, first and second trees."""
    fabric, log = logged(case), LOGS[case]
    told = log_lines.printed(fabric, fabric.gpus, trees=99)
    orders = [order for count, order in log["rings"] for _ in range(count)]
    total = len(orders)
    expected = [
        f"Channel {c:02}/{total:02} : {' '.join(map(str, order))}"
        for c, order in enumerate(orders)
    ]
    assert [line for line in told if line.startswith("Channel")] == expected
    group = group_of(fabric, fabric.gpus)
    made = log_lines.links(group, searched.every_host(group, fabric, Nccl()), total)
    trees = [
        {int(k): v for k, v in up.items()}
        for count, up in log["trees"]
        for _ in range(count)
    ]
    assert [
        {r: p for r, p in enumerate(parents) if p >= 0} for parents in made.parents
    ] == trees


def test_children_are_printed_in_nccl_s_order() -> None:
    """Two hosts of two: the log's "Trees" lines of all four ranks, the chain's child before the network's."""
    fabric = logged("2x2")
    assert [
        line
        for line in log_lines.printed(fabric, fabric.gpus)
        if line.startswith("Trees")
    ] == [
        "Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2",
        "Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0",
        "Trees [0] 3/-1/-1->2->0 [1] 3/0/-1->2->-1",
        "Trees [0] -1/-1/-1->3->2 [1] -1/-1/-1->3->2",
    ]


BUNDLED = (
    "h200-host-2",
    "h200-host-4",
    "dgx-a100",
    "dgx-h100",
    "dgx-b200",
    "hgx-h800",
    "gb200-nvl72",
)


#: Parts of hosts, and of a rack on both sides of the budget for channels that are equal.
PARTS = [
    *(("dgx-b200", gpus) for gpus in range(2, 8)),
    *(("dgx-h100", gpus) for gpus in range(2, 8)),
    *(("gb200-nvl72", gpus) for gpus in (4, 8, 31, 32)),
    ("hgx-h800", 4),
]


@pytest.mark.parametrize(("name", "gpus"), [*((name, 0) for name in BUNDLED), *PARTS])
def test_bandwidths_alone_tell_the_same_on_nvswitches(name: str, gpus: int) -> None:
    """Channels, speeds, pattern and heads of NVLink SHARP that `search` computes are those of the walk; NVL72 is one
    domain, and three or four GPUs of a host are left to the walk."""
    fabric = load_cluster(name)
    group, graphs = graphs_of(fabric, fabric.gpus[: gpus or None])
    graph = search(group, fabric.gpu_model, Nccl(), fabric)
    assert switched(group, fabric) == (group.n not in (3, 4))
    assert (graphs.ring.count, graphs.ring.inside) == (graph.count, graph.ring)
    assert (graphs.tree.count, graphs.tree.inside) == (graph.count, graph.tree)
    assert (graphs.tree.pattern, graphs.ring.same) == (graph.pattern, graph.same)
    if graphs.nvls is not None:
        assert (graphs.nvls.count, graphs.nvls.inside, graphs.nvls.between) == (
            graph.heads,
            graph.nvls,
            graph.nvls_inter,
        )


def several(name: str) -> Fabric:
    """Two or more hosts: of a bundled cluster, or with fewer NICs than GPUs."""
    made = {"4 NICs": (8, 4), "1 NIC": (8, 1), "4 GPUs": (4, 4)}
    if name in made:
        return cluster(2, gpus=made[name][0], nics=made[name][1])
    return load_cluster(name, 2) if name == "aws-p5" else load_cluster(name)


@pytest.mark.parametrize(
    "name", ["4 NICs", "1 NIC", "4 GPUs", "aws-p5", "roce-h100", "rail-h100"]
)
def test_bandwidths_alone_tell_the_same_between_hosts(name: str) -> None:
    """Channels, speeds, the tree's pattern and NVLink SHARP's heads; a tree's chain may gain one step in the search."""
    fabric = several(name)
    group, graphs = graphs_of(fabric)
    graph = search(group, fabric.gpu_model, Nccl(), fabric)
    assert switched(group, fabric)
    assert (graphs.ring.count, graphs.ring.inside, graphs.ring.between) == (
        graph.count,
        graph.ring,
        graph.inter,
    )
    assert graphs.tree.pattern == graph.pattern and graphs.tree.inside == pytest.approx(
        graph.tree, rel=0.07
    )
    assert graphs.nvls is not None
    assert (graphs.nvls.count, graphs.nvls.inside, graphs.nvls.between) == (
        graph.heads,
        graph.nvls,
        graph.nvls_inter,
    )


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_between_hosts_channels_keep_to_rails(hosts: int) -> None:
    """8 channels of 48 GB/s, one per NIC, in pairs that swap nets; rings of public logs of two H100 hosts."""
    fabric = cluster(hosts)
    group, graphs = graphs_of(fabric)
    ring, tree = graphs.ring, graphs.tree
    assert (ring.count, ring.inside, ring.between, ring.cross) == (8, 48, 48, 2)
    assert (tree.pattern, tree.count, tree.inside, tree.between) == (3, 8, 48, 48)
    assert all(
        a != b and ring.nets[c ^ 1] == (b, a) for c, (a, b) in enumerate(ring.nets)
    )
    made = log_lines.links(group, searched.every_host(group, fabric, Nccl()), 16)
    if hosts == 2:
        assert made.rings[0] == (0, 7, 6, 5, 4, 3, 2, 1, 9, 10, 11, 12, 13, 14, 15, 8)
    crossing = sum(
        a // 8 != b // 8 and a % 8 != b % 8
        for order in made.rings
        for a, b in zip(order, (*order[1:], order[0]), strict=True)
    )
    # An odd number of hosts cannot all swap: one wire of every ring joins two rails.
    assert crossing == (0 if hosts % 2 == 0 else 16)


@pytest.mark.parametrize(
    ("sockets", "bridges"),
    [
        ((4,), ()),
        ((2, 2), ()),
        ((3, 2), ()),
        ((4, 4), ()),
        ((1, 1), ()),
        ((2, 2), ((0, 1), (2, 3))),
        ((3,), ()),
    ],
)
def test_pcie_hosts_are_searched_edge_by_edge(
    sockets: tuple[int, ...], bridges: tuple[tuple[int, int], ...]
) -> None:
    """Rings visit every GPU once; what they take from every link fits; the room is given back; rings and trees are
    as many."""
    fabric = pcie_host(sockets, bridges)
    group = group_of(fabric, fabric.gpus)
    system = of_parts(
        parts_of(fabric, group, group.hosts[0], generation.load("ampere"))
    )
    ring = compute(system, RING, 80, generation.load("ampere").host_speeds)
    walk = Walk(system, replace(ring, most=32), ring, 2**10)
    walk.run()
    assert walk.room == list(system.room)
    assert all(sorted(order) == list(range(group.n)) for order in ring.orders)
    taken = [0.0] * len(system.room)
    for order in ring.orders:
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            for at, cost in zip(
                system.between[a][b].links, system.between[a][b].cost, strict=True
            ):
                taken[at] += cost * ring.inside * 1000
    assert all(used <= room + 1 for used, room in zip(taken, system.room, strict=True))
    graph = search(group, "a100", Nccl(), fabric)
    assert graph.channels == 2 * graph.count == 2 * ring.count and not graph.ll128
    assert ring.type_inside == (SYS if len(sockets) > 1 else TYPES.index("PIX"))
    # Between sockets there are 16 GB/s each way; one ring crosses once in each direction.
    assert ring.count * ring.inside <= (16 if len(sockets) > 1 else 24)


def test_on_one_switch_the_slot_is_the_limit_and_between_sockets_their_link() -> None:
    """4 GPUs on a Gen4 switch: two rings of 12 GB/s; on two sockets one of 15 of 16: NCCL's steps, not the wire."""
    _, near = graphs_of(pcie_host((4,)))
    _, far = graphs_of(pcie_host((2, 2)))
    assert (near.ring.count, near.ring.inside) == (2, 12)
    assert (far.ring.count, far.ring.inside) == (1, 15)


def test_memory_instead_of_p2p_is_searched_through_the_cpu() -> None:
    """With p2p_disable ways go over the CPU; fewer channels than over NVLink, and LL128 is not trusted."""
    fabric = load_cluster("h200-host-4")
    wanted = Nccl(p2p_disable=True)
    group, graphs = graphs_of(fabric, wanted=wanted)
    graph = search(group, "h200", wanted, fabric)
    assert (
        TYPES[graphs.ring.type_inside] == "PHB" and graph.count < 12 and not graph.ll128
    )


@pytest.mark.parametrize(
    ("hosts", "gpus"), [(1, 8), (2, 8), (3, 8), (5, 4), (4, 1), (7, 2)]
)
def test_every_channel_is_one_ring_and_one_tree(hosts: int, gpus: int) -> None:
    """A ring passes every rank once; a tree has one root, no cycle, and children that name their parent."""
    fabric = cluster(hosts, gpus=gpus, nics=gpus)
    group = group_of(fabric, fabric.gpus)
    made = log_lines.links(group, searched.every_host(group, fabric, Nccl()), 16)
    for order in made.rings:
        assert sorted(order) == list(range(group.n))
    for parents, children in zip(made.parents, made.children, strict=True):
        assert list(parents).count(-1) == 1
        assert all(
            rank in children[above] for rank, above in enumerate(parents) if above >= 0
        )
        assert sum(map(len, children)) == group.n - 1 and max(map(len, children)) <= 3
        for rank in range(group.n):
            at, steps = rank, 0
            while parents[at] >= 0:
                at, steps = parents[at], steps + 1
                assert steps < group.n


def test_hosts_with_fewer_gpus_give_all_of_them_fewer_channels() -> None:
    """8 and 7 GPUs: 7 channels found, 14 of them, doubled as Hopper does between hosts below 16."""
    fabric = cluster(2)
    group = group_of(fabric, fabric.gpus[:15])
    graph = search(group, "h100", Nccl(), fabric)
    assert (graph.count, graph.channels, graph.ring) == (7, 28, 48) and not switched(
        group, fabric
    )
    told = [
        line
        for line in log_lines.printed(fabric, fabric.gpus[:15])
        if line.startswith("Channel")
    ]
    assert len(told) == 28 and told[0].endswith(": 0 7 6 5 4 3 2 1 8 14 13 12 11 10 9")


def test_groups_of_some_gpus_are_searched_too() -> None:
    """Three of eight GPUs, in NCCL's numbering 0 to 2: 12 channels of 30 as for all."""
    _, graphs = graphs_of(load_cluster("dgx-h100"), ("gpu1", "gpu4", "gpu6"))
    assert (graphs.ring.count, graphs.ring.inside, graphs.ring.orders[0]) == (
        12,
        30,
        (0, 1, 2),
    )


def test_generations_and_capabilities() -> None:
    """The GPU's file says its generation, or that of the GPU it is like; sm90 counted 20 GB/s of a link before 2.21."""
    gpus = "v100", "a100", "h200", "gb200"
    assert [generation_of(gpu).capability for gpu in gpus] == [70, 80, 90, 100]
    likes = [generation_of(gpu).name for gpu in ("a100-40gb", "h800", "b300")]
    assert likes == ["ampere", "hopper", "blackwell"]
    hopper = generation.load("hopper")
    assert hopper.at((2, 20)).nvlink_share == 0.8
    assert hopper.at((2, 21)).nvlink_share == pytest.approx(0.824)


def test_topology_show_prints_rings() -> None:
    """`topology show --rings` and `collective --explain` print NCCL's lines."""
    shown = CliRunner().invoke(cli.main, ["topology", "show", "dgx-h100", "--rings"])
    assert (
        shown.exit_code == 0
        and "Channel 00/24 : 0 1 2 3 4 5 6 7" in shown.stdout.splitlines()
    )
    one = ["--min-bytes", "1M", "--max-bytes", "1M", "--explain"]
    told = CliRunner().invoke(cli.main, ["collective", "--cluster", "dgx-h100", *one])
    assert (
        "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX"
        in told.stdout
    )


@pytest.mark.parametrize(
    ("gpus", "tree"), [(2, (16, 90, 1)), (4, (16, 50, 3)), (8, (16, 45, 1))]
)
def test_trees_of_part_of_a_b200_host_are_nccl_s(
    gpus: int, tree: tuple[int, float, int]
) -> None:
    """Channels, GB/s of each and pattern, as NCCL's own search code answers for 2, 4 and 8 GPUs."""
    fabric = load_cluster("dgx-b200")
    group = group_of(fabric, fabric.gpus[:gpus], Nccl())
    graph = search(group, fabric.gpu_model, Nccl(), fabric)
    assert (graph.count, graph.tree, graph.pattern) == tree
