"""Routes found once for all that are alike are the routes that a plain search finds for each."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.router import Router

SPREAD = {
    "roce-h100": 400,  # more paths than are kept, between pods
    "roce-a100": 16,
    "alcf-sophia": 8,
    "gb200-nvl4": 12,
    "aws-p5": 8,
}


def joined(graph: Any, a: str, b: str, kind: str = "nic") -> None:
    """Adds a link there and back."""
    for pair in ((a, b), (b, a)):
        graph.add_edge(*pair, kind=kind, bandwidth=1e9, latency=1e-6)


@st.composite
def networks(draw: st.DrawFn) -> Fabric:
    """Hosts of two GPUs and two NICs under random switches, some of which are alike."""
    graph: Any = nx.MultiDiGraph()
    tops = [f"top{at}" for at in range(draw(st.integers(1, 3)))]
    leaves = [f"leaf{at}" for at in range(draw(st.integers(1, 5)))]
    for name in (*tops, *leaves):
        graph.add_node(name, kind="switch", host="")
    for leaf in leaves:
        for top in draw(st.lists(st.sampled_from(tops), min_size=1, unique=True)):
            joined(graph, leaf, top, "spine")
    for other in tops[1:]:
        joined(graph, tops[0], other, "spine")
    for number in range(draw(st.integers(2, 5))):
        _add_host(graph, f"h{number}", leaves, draw)
    return Fabric.from_graph(graph, "random", "h100")


def _add_host(graph: Any, host: str, leaves: list[str], draw: st.DrawFn) -> None:
    graph.add_node(f"{host}/plx", kind="pcie_switch", host=host)
    for number in range(2):
        graph.add_node(f"{host}/gpu{number}", kind="gpu", host=host)
        graph.add_node(f"{host}/nic{number}", kind="nic", host=host)
        joined(graph, f"{host}/gpu{number}", f"{host}/plx", "pcie")
        joined(graph, f"{host}/nic{number}", f"{host}/plx", "pcie")
        joined(graph, f"{host}/nic{number}", draw(st.sampled_from(leaves)))


@given(fabric=networks())
def test_routes_of_all_pairs_are_those_of_a_plain_search(fabric: Fabric) -> None:
    """Whatever the wiring, rows and shares of every pair are those that a search for this pair alone finds."""
    gpus = fabric.positions(fabric.gpus)
    src, dst = np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus))
    pair, row, share = fabric.spreads(src, dst)
    plain = Router(fabric.nodes, fabric.links)
    for at, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        rows, shares = plain.spread(a, b)
        assert row[pair == at].tolist() == rows.tolist()
        assert share[pair == at] == pytest.approx(shares, rel=1e-12)
        alone = fabric.spread(fabric.nodes.names[a], fabric.nodes.names[b])
        assert [part.tolist() for part in alone] == [rows.tolist(), shares.tolist()]


@given(fabric=networks())
def test_twins_have_each_others_paths(fabric: Fabric) -> None:
    """Between any two switches: hops and paths in link order, as if each pair had been searched for."""
    kinds = fabric.nodes.kinds
    outside = np.flatnonzero(np.array(kinds) == "switch")
    net = Net(fabric.nodes, fabric.links, fabric.ends, outside)
    places = np.arange(len(outside))
    for s in places.tolist():
        for t in places.tolist():
            hops = net.distance(np.array([[s]]), np.array([[t]]))
            assert hops.item() == net._router.hops(s)[t]
            if s != t:
                router = net._router
                onward, ways = router._ways(s, t)
                found = [router._path(s, t, onward, ways, at) for at in range(ways[s])]
                paths = [net.rows[path].tolist() for path in found]
                assert net.lines(s, t).tolist() == paths


@pytest.mark.parametrize("name", SPREAD)
def test_several_doors_are_not_searched_pair_by_pair(name: str) -> None:
    """Pairs with several equally good NICs have exactly the router's shares, and the router is not asked for them."""
    fabric = load_cluster(name, SPREAD[name])
    gpus = fabric.positions(fabric.gpus)
    src, dst = gpus[:: len(gpus) // 12], gpus[5 :: len(gpus) // 12][:12]
    src, dst = np.repeat(src, len(dst)), np.tile(dst, len(src))
    apart = np.array(fabric.nodes.hosts)[src] != np.array(fabric.nodes.hosts)[dst]
    src, dst = src[apart], dst[apart]
    pair, row, share = fabric.spreads(src, dst)
    assert not fabric._router.spreads
    plain = Router(fabric.nodes, fabric.links)
    for at in range(0, len(src), 7):
        rows, shares = plain.spread(int(src[at]), int(dst[at]))
        assert row[pair == at].tolist() == rows.tolist()
        assert share[pair == at].tolist() == shares.tolist()


def test_racks_of_a_pod_are_searched_once() -> None:
    """A thousand racks in six pods: paths are found between pods, not between racks."""
    fabric = load_cluster("roce-h100", 2048)
    gpus = fabric.positions(fabric.gpus)
    fabric.spreads(gpus, np.roll(gpus, 8))
    assert len(fabric._batch.net._bundles) <= 6 * 6
