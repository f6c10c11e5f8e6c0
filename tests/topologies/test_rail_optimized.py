"""Rail-optimised clusters: counts by formula, rails, and the way between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.wires import nics
from prestep.sim.errors import InputError
from prestep.topologies import host, load_cluster
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_hosts, add_node, join, new_graph
from prestep.topologies.host import Params as Host
from prestep.topologies.rail_optimized import Params, build
from prestep.topologies.show.tiers import tiers

SMALL = Params(hosts=8, hosts_per_group=4, spines=2)


def passes(fabric: Fabric, src: str, dst: str) -> list[set[str]]:
    """Nodes outside every host on each route."""
    links = fabric.links
    ways = [links.dst[rows].tolist() for rows, _ in fabric.routes(src, dst)]
    return [{node for node in way if not fabric.host_of(node)} for way in ways]


@pytest.mark.parametrize(
    ("hosts", "group", "spines"), [(1, 4, 2), (8, 4, 2), (10, 4, 4), (64, 32, 8)]
)
def test_nodes_and_links_by_formula(hosts: int, group: int, spines: int) -> None:
    """One leaf per rail and group begun, a link per NIC, and every leaf joined to every spine, both ways."""
    fabric = compile_graph(
        build(Params(hosts=hosts, hosts_per_group=group, spines=spines))
    )
    leaves = -(-hosts // group) * 8
    assert (len(fabric.gpus), len(fabric.hosts)) == (8 * hosts, hosts)
    assert (
        len(fabric.nodes.of_kind("leaf")) == leaves
        and len(fabric.nodes.of_kind("spine")) == spines
    )
    assert len(fabric.links.of_kind("nic")) == 2 * 8 * hosts
    up = fabric.links.of_kind("spine")
    assert len(up) == 2 * leaves * spines
    assert fabric.links.count[up].sum() == 2 * leaves * group


def test_a_rail_of_a_group_uses_its_leaf_alone() -> None:
    """GPU i of two hosts of one group meet at leaf i, and at nothing else outside their hosts."""
    fabric = compile_graph(build(SMALL))
    for rail in range(8):
        assert passes(fabric, f"host0/gpu{rail}", f"host3/gpu{rail}") == [
            {f"group0/leaf{rail}"}
        ]


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("host0/gpu0", "host7/gpu0"),
        ("host0/gpu0", "host1/gpu5"),
        ("host1/gpu2", "host6/gpu7"),
    ],
)
def test_other_routes_go_up_one_spine_and_down(src: str, dst: str) -> None:
    """Out of the GPU's own NIC to its leaf, one spine, the other's leaf and NIC: once over each spine."""
    fabric = compile_graph(build(SMALL))
    assert len(fabric.routes(src, dst)) == 2
    for rows, share in fabric.routes(src, dst):
        kinds = [
            fabric.nodes.kinds[fabric.node_index(node)]
            for node in fabric.links.dst[rows]
        ]
        assert kinds == [
            "pcieswitch",
            "nic",
            "leaf",
            "spine",
            "leaf",
            "nic",
            "pcieswitch",
            "gpu",
        ]
        assert fabric.links.src[rows[2]][-1] == src[-1] and share == pytest.approx(0.5)


@pytest.mark.parametrize("oversubscription", [1, 2, 4])
def test_oversubscription_is_down_over_up(oversubscription: int) -> None:
    """What hosts can send into a group's leaves, over what the leaves can send on."""
    fabric = compile_graph(
        build(
            Params(
                hosts=16, hosts_per_group=8, spines=2, oversubscription=oversubscription
            )
        )
    )
    below, above = tiers(fabric)[-2:]
    assert (below.kind, above.kind) == ("leaf", "spine")
    assert below.egress == pytest.approx(400e9)
    assert 8 * below.egress / above.egress == pytest.approx(oversubscription)


def test_repeated_hosts_are_hosts_added_one_by_one() -> None:
    """Copies of a host are the nodes and rows of hosts that are each named, and of the same nodes written out."""
    pattern = host.pattern(Host())
    many, named, plain = (new_graph("three", "h100") for _ in range(3))
    nics = add_hosts(many, "host", pattern, copies=3)
    for name in ("host0", "host1", "host2"):
        assert add_hosts(named, name, pattern) == nics
        for node, data in pattern.nodes.items():
            add_node(plain, f"{name}/{node}", data["kind"], name)
        for a, b, data in sorted(
            pattern.edges(data=True), key=lambda edge: edge[2]["link"]
        ):
            cable = data["kind"], data["spec"], data["count"]
            join(plain, f"{name}/{a}", f"{name}/{b}", *cable)
    for graph in (many, named, plain):
        add_node(graph, "leaf", "leaf")
    join(many, "host", "leaf", "nic", Host().nic, tail_ports=nics[:1])
    for graph in (named, plain):
        for name in ("host0", "host1", "host2"):
            join(graph, f"{name}/nic0", "leaf", "nic", Host().nic)
    one, *others = map(compile_graph, (many, named, plain))
    for other in others:
        assert one.nodes == other.nodes
        for column in one.links.__dataclass_fields__:
            assert (getattr(one.links, column) == getattr(other.links, column)).all()


def test_uneven_cables_are_refused() -> None:
    """Cables that do not divide over the spines, and counts below one, name the key."""
    with pytest.raises(
        InputError, match=r"hosts_per_group.*multiple of oversubscription"
    ):
        compile_graph(build(Params(hosts_per_group=32, spines=3)))
    for key in ("hosts", "planes", "oversubscription", "nics"):
        with pytest.raises(InputError, match=f"rail_optimized: {key}"):
            replace(SMALL, **{key: 0})  # type: ignore[arg-type]


def out_of_host(fabric: Fabric) -> float:
    """Bytes/s of a GPU's ports to another host's GPU on the same rail."""
    share = np.zeros(len(fabric.links))
    for rows, part in fabric.routes("host0/gpu0", "host3/gpu0"):
        share[rows] += part
    used = (fabric.links.kind == "nic") & (share > 0)
    return float(np.min(fabric.links.bandwidth[used] / share[used]))


def net(fabric: Fabric) -> nics.Net:
    """The network as NCCL sees it."""
    return group_of(fabric, fabric.gpus).net


@pytest.mark.parametrize("planes", [2, 4])
def test_planes_share_a_port_and_fail_alone(planes: int) -> None:
    """Ports of a NIC add up, and without a plane the others carry everything."""
    port = replace(SMALL.nic, bandwidth=Quantity(48e9 / planes, "guess", ""))
    wide = replace(SMALL.nic, bandwidth=Quantity(48e9, "guess", ""))
    whole = compile_graph(build(replace(SMALL, nic=wide)))
    fabric = compile_graph(build(replace(SMALL, planes=planes, nic=port)))
    assert out_of_host(fabric) == pytest.approx(out_of_host(whole))
    left = with_overrides(fabric, {"plane0": "off"})
    assert out_of_host(left) == pytest.approx(48e9 * (planes - 1) / planes)
    assert not any(name.startswith("plane0/") for name in left.nodes.names)
    assert net(left).nics == net(fabric).nics == net(whole).nics


def test_rails_without_spines_meet_in_hosts_alone() -> None:
    """Another rail is reached inside a host, not over switches; more hosts than a leaf has ports down are refused."""
    fabric = compile_graph(build(replace(SMALL, spines=0, hosts=SMALL.hosts_per_group)))
    assert not fabric.nodes.of_kind("spine")
    (way,) = passes(fabric, "host0/gpu0", "host3/gpu0")
    assert way == {"group0/leaf0"} and len(fabric.route("host0/gpu0", "host3/gpu7"))
    with pytest.raises(InputError, match="no spine joins groups"):
        replace(SMALL, spines=0, hosts=SMALL.hosts_per_group + 1)


def test_the_bundled_cluster_scales() -> None:
    """A scenario's hosts makes more groups of the same size."""
    fabric = load_cluster("rail-h100", hosts=96)
    assert len(fabric.gpus) == 768 and len(fabric.nodes.of_kind("leaf")) == 24
    assert fabric.facts["nvlink_sharp"].value == 1


def test_traffic_between_rails_does_not_pass_the_cpu() -> None:
    """GPUs of different rails meet over the spines: a NIC beyond the CPU is as few hops away, but not as near."""
    fabric = load_cluster("rail-h100", 4)
    for link in fabric.spread("host0/gpu0", "host2/gpu1")[0]:
        assert "cpu" not in str(fabric.links.src[link]) and "cpu" not in str(
            fabric.links.dst[link]
        )
