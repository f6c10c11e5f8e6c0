"""Groups that lie alike have the same routes, link by link."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.topologies import load_cluster
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.symmetry import Symmetry
from tests.topologies.test_batch import SMALL

FABRICS = SMALL | {
    "roce": load_cluster("roce-h100", hosts=48),
    "p5": load_cluster("aws-p5", hosts=6),
    "superpod": load_cluster("dgx-h100-superpod", hosts=6),
}


def symmetry_of(fabric: Fabric) -> Symmetry:
    assert fabric.symmetry is not None
    return fabric.symmetry


def moved(group: list[str], hosts: list[str], fabric: Fabric) -> list[str]:
    """The GPUs in the same places of other hosts, which take the place of the group's in their order."""
    other = dict(zip(dict.fromkeys(map(fabric.host_of, group)), hosts, strict=False))
    return [f"{other[fabric.host_of(gpu)]}/{gpu.rpartition('/')[2]}" for gpu in group]


def hops_of(fabric: Fabric, nodes: Ints) -> list[tuple[Ints, np.ndarray]]:
    """The links between neighbours of a group."""
    names = [fabric.nodes.names[node] for node in nodes.tolist()]
    return [fabric.spread(a, b) for a, b in pairwise([*names, names[0]])]


@pytest.mark.parametrize("name", FABRICS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_routes_of_groups_that_lie_alike(name: str, data: st.DataObject) -> None:
    """What stands for the links of a route is the route between those who stand for its ends, with the same shares."""
    fabric = FABRICS[name]
    symmetry, hosts = symmetry_of(fabric), list(fabric.gpus_by_host)
    gpus = st.lists(st.sampled_from(fabric.gpus), min_size=2, max_size=5, unique=True)
    group = data.draw(gpus)
    places = st.permutations(hosts) | st.integers(1, len(hosts) - 1).map(
        lambda by: hosts[by:] + hosts[:by]
    )
    order = dict(zip(hosts, data.draw(places), strict=True))
    others = moved(
        group, [order[h] for h in dict.fromkeys(map(fabric.host_of, group))], fabric
    )
    nodes, elsewhere = fabric.positions(group), fabric.positions(others)
    mark = symmetry.mark(nodes)
    assert mark is not None
    if mark != symmetry.mark(elsewhere):
        return
    routes = hops_of(fabric, nodes), hops_of(fabric, elsewhere)
    if not symmetry.settled(nodes):
        return
    for (links, share), (theirs, their_share) in zip(*routes, strict=True):
        rows = symmetry.rows(links, nodes, elsewhere)
        if rows is None:
            continue
        order_of = np.argsort(rows)
        assert rows[order_of].tolist() == theirs.tolist()
        assert share[order_of] == pytest.approx(their_share, rel=1e-12)


def test_hosts_under_other_switches_lie_alike() -> None:
    """Neighbours of one group of rails lie as neighbours of the next do, and not as two of different groups."""
    fabric = load_cluster("rail-h100", hosts=64)
    symmetry = symmetry_of(fabric)

    def mark(*hosts: int) -> bytes | None:
        return symmetry.mark(fabric.positions([f"host{host}/gpu0" for host in hosts]))

    assert mark(0, 1) == mark(33, 40) != mark(0, 32)
    assert mark(0, 32) == mark(40, 7)


@pytest.mark.parametrize("changed", ["nic[host1].bandwidth", "pcie[host1].latency"])
def test_a_changed_host_lies_like_no_other(changed: str) -> None:
    """A host of which a link was changed has no image but itself."""
    fabric = load_cluster("rail-h100", hosts=4, overrides={changed: "0.5x"})
    symmetry = symmetry_of(fabric)
    marks = [
        symmetry.mark(fabric.positions([f"host{host}/gpu{k}" for k in range(8)]))
        for host in range(4)
    ]
    assert marks[0] == marks[2] == marks[3] != marks[1]


def test_nothing_is_moved_where_one_cable_is_slow() -> None:
    """Where links between switches differ, none stands for another."""
    fabric = load_cluster(
        "rail-h100", hosts=64, overrides={"spine[0].bandwidth": "0.5x"}
    )
    assert symmetry_of(fabric).mark(fabric.positions(fabric.gpus[:2])) is None


def test_a_storage_fabric_is_in_nobodys_way() -> None:
    """Uneven links to storage, over which no GPU sends to another, leave GPUs alike."""
    fabric = load_cluster("dgx-h100-superpod", hosts=128)
    symmetry = symmetry_of(fabric)
    marks = [
        symmetry.mark(fabric.positions([f"host{host}/gpu{k}" for k in range(8)]))
        for host in range(128)
    ]
    assert None not in marks and len(set(marks)) < 16


def test_a_choice_among_too_many_paths_is_not_moved() -> None:
    """Which of more paths than are kept are taken depends on the two ends: such routes are found one by one."""
    fabric = FABRICS["more paths than are kept"]
    symmetry = symmetry_of(fabric)
    far = fabric.positions([fabric.gpus[0], fabric.gpus[-1]])
    fabric.spread(fabric.gpus[0], fabric.gpus[-1])
    assert not symmetry.settled(far)
