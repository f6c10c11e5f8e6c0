"""Routes: shortest, deterministic, and indifferent to names."""

from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import host, load_cluster
from prestep.topologies.core.kinds import ENDPOINTS
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.host import Params

DGX = load_cluster("dgx-h100")
# Between two NVSwitches there is no path: a GPU does not forward.
NODES = st.sampled_from(
    [name for name in DGX.nodes.names if not name.startswith("nvswitch")]
)


@given(NODES, NODES)
def test_routes_are_shortest_paths_and_carry_every_byte_once(
    src: str, dst: str
) -> None:
    """Each path leads from src to dst in the fewest hops there are, through no GPU, disk or memory."""
    inner = [
        node
        for node in DGX.nodes.names
        if DGX.graph.nodes[node]["kind"] not in ENDPOINTS or node in (src, dst)
    ]
    hops = nx.shortest_path_length(DGX.graph.subgraph(inner), src, dst)
    routes = DGX.routes(src, dst)
    for path, _ in routes:
        stops = [src, *DGX.links.dst[path].tolist()]
        assert len(path) == hops
        assert stops[-1] == dst
        assert DGX.links.src[path].tolist() == stops[:-1]
        assert not ENDPOINTS & {DGX.graph.nodes[stop]["kind"] for stop in stops[1:-1]}
    assert sum(share for _, share in routes) == pytest.approx(1)
    assert DGX.route(src, dst).tolist() == routes[0][0].tolist()


@given(NODES, NODES)
def test_spread_conserves_bytes_at_every_node(src: str, dst: str) -> None:
    """What flows in flows out, but for one unit that leaves src and arrives at dst."""
    rows, share = DGX.spread(src, dst)
    net = dict.fromkeys(DGX.nodes.names, 0.0)
    for row, part in zip(rows.tolist(), share.tolist(), strict=True):
        net[DGX.links.src[row]] -= part
        net[DGX.links.dst[row]] += part
    expected = dict.fromkeys(net, 0.0)
    expected[src] -= 1
    expected[dst] += 1
    assert net == pytest.approx(expected, abs=1e-12)


def test_nvlink_is_preferred_to_a_pcie_switch_at_the_same_distance() -> None:
    """Two GPUs under one PCIe switch, as NCCL's path types have it, also when NVLink's latency is made worse."""
    fabric = with_overrides(
        compile_graph(host.build(Params(gpus=4, gpus_per_pcie_switch=2))),
        {"nvlink.latency": "1 ms"},
    )
    assert {
        fabric.links.kind[row]
        for path, _ in fabric.routes("gpu0", "gpu1")
        for row in path
    } == {"nvlink"}


def test_without_nvlink_a_shared_pcie_switch_or_the_sockets_carry_the_bytes() -> None:
    """The tree's own shortest path."""
    fabric = compile_graph(
        host.build(Params(gpus=4, gpus_per_pcie_switch=2, nvlinks=()))
    )
    assert fabric.links.names(fabric.route("gpu0", "gpu1")) == [
        "gpu0-pcieswitch0",
        "pcieswitch0-gpu1",
    ]
    assert "socket" in fabric.links.kind[fabric.route("gpu0", "gpu3")]


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(8)), st.integers(0, 7), st.integers(0, 7))
def test_relabelling_changes_names_only(order: list[int], a: int, b: int) -> None:
    """Renamed GPUs get the renamed routes, over the same rows."""
    names = {f"gpu{at}": f"gpu{new}" for at, new in enumerate(order)}
    other = Fabric.from_graph(nx.relabel_nodes(DGX.graph, names))
    for (path, share), (theirs, part) in zip(
        DGX.routes(f"gpu{a}", f"gpu{b}"),
        other.routes(names[f"gpu{a}"], names[f"gpu{b}"]),
        strict=True,
    ):
        assert path.tolist() == theirs.tolist()
        assert share == part


def test_the_graph_and_back_is_the_same_fabric() -> None:
    """`from_graph(fabric.graph)` loses nothing but the sources of the file's numbers."""
    again = Fabric.from_graph(DGX.graph)
    assert again.nodes == DGX.nodes
    assert (again.name, again.gpu_model, again.family) == (DGX.name, "h100", "host")
    for column in DGX.links.__dataclass_fields__:
        assert (getattr(again.links, column) == getattr(DGX.links, column)).all()


def test_two_loads_and_a_pickle_route_alike() -> None:
    """Deterministic, also in another process."""
    DGX.route("gpu0", "nic5")
    for other in (load_cluster("dgx-h100"), pickle.loads(pickle.dumps(DGX))):
        assert all(
            (other.route(a, "nic5") == DGX.route(a, "nic5")).all() for a in DGX.gpus
        )


def test_the_nearest_memory_nic_and_disk_are_on_the_own_socket() -> None:
    """A rank reads from its own socket's memory and sends by the NIC beside it."""
    assert [DGX.nearest(gpu, "memory") for gpu in DGX.gpus] == ["memory0"] * 4 + [
        "memory1"
    ] * 4
    assert [DGX.nearest(f"gpu{at}", "nic") for at in range(8)] == [
        f"nic{at}" for at in range(8)
    ]
    with pytest.raises(InputError, match='did you mean "memory"'):
        DGX.nearest("gpu0", "memroy")


def test_a_node_that_does_not_exist_is_suggested() -> None:
    """Instead of a KeyError."""
    with pytest.raises(InputError, match=r'found "gpu00".*did you mean'):
        DGX.route("gpu00", "gpu1")
    assert DGX.route("gpu1", "gpu1").dtype == np.int64
    assert not len(DGX.route("gpu1", "gpu1"))
    assert DGX.host_of("gpu1") == "host0"
    assert DGX.host_of("network") == ""
