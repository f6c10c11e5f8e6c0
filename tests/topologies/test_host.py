"""A host's graph: formulas for its size, and facts from datasheets and measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import cluster_names, host, load_cluster
from prestep.topologies.core.quantity import GRADES, Quantity
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.host import Params
from prestep.topologies.show.summary import bisection
from tests.sample import together

PARAMS = st.builds(
    Params,
    gpus=st.integers(1, 8),
    nvlinks=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    sockets=st.integers(1, 2),
    gpus_per_pcie_switch=st.integers(0, 4),
    nics=st.integers(0, 8),
    nvmes=st.integers(0, 8),
)


@given(PARAMS)
def test_counts_follow_from_the_parameters(params: Params) -> None:
    """Every GPU has one link to each NVSwitch and one to its slot; every device hangs on one slot."""
    fabric = compile_graph(host.build(params))
    graph, links = fabric.graph, fabric.links
    switches = (
        -(-params.gpus // params.gpus_per_pcie_switch)
        if params.gpus_per_pcie_switch
        else 0
    )
    assert len(fabric.gpus) == params.gpus
    assert (
        graph.number_of_nodes()
        == len(fabric.nodes)
        == (
            params.gpus
            + len(params.nvlinks)
            + 2 * params.sockets
            + switches
            + params.nics
            + params.nvmes
            + bool(params.nics)
        )
    )
    pairs = (
        params.gpus * len(params.nvlinks)
        + switches
        + params.gpus
        + 2 * params.nics
        + params.nvmes
    )
    assert (
        graph.number_of_edges()
        == len(links)
        == 2 * (pairs + params.sockets + params.sockets * (params.sockets - 1) // 2)
    )
    assert all(graph.out_degree(gpu) == len(params.nvlinks) + 1 for gpu in fabric.gpus)
    assert links.count[links.of_kind("nvlink")].sum() == 2 * params.gpus * sum(
        params.nvlinks
    )


@settings(max_examples=20, deadline=None)
@given(PARAMS)
def test_every_link_has_its_reverse(params: Params) -> None:
    """Same ends, kind, count and latency."""
    links = compile_graph(host.build(params)).links
    back = np.array([links.index[dst, src] for src, dst in links.index])
    assert (back[back] == np.arange(len(links))).all()
    for column in (links.kind, links.count, links.latency):
        assert (column[back] == column).all()


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-h200"])
def test_eight_hoppers_have_a_bisection_of_3_6_tb_per_second(name: str) -> None:
    """Four GPUs on each side, 18 links of 25 GB/s each, both directions (DGX H100 datasheet); payload is less."""
    fabric = load_cluster(name)
    assert bisection(fabric, ["nvlink"]) == pytest.approx(3.6e12)
    assert 3.0e12 < bisection(fabric, ["nvlink"], wire=False) < 3.6e12


def test_the_measured_host_has_the_measured_rates() -> None:
    """Copies between GPUs 397 GB/s, to and from host memory 55 GB/s."""
    fabric = load_cluster("h200-host-4")
    links = fabric.links
    rows, share = fabric.spread("gpu0", "gpu3")
    assert (links.bandwidth[rows] / share).min() == pytest.approx(397.2e9, rel=0.005)
    down, up = fabric.route("memory0", "gpu2"), fabric.route("gpu2", "memory0")
    assert links.bandwidth[down].min() == pytest.approx(55.2e9)
    assert links.bandwidth[up].min() == pytest.approx(55.5e9)
    assert set(links.evidence[fabric.links.of_kind("pcie")]) == {"measured"}


@together("name", cluster_names())
def test_every_number_of_a_bundled_cluster_says_where_it_comes_from(name: str) -> None:
    """A grade and a source, no path of somebody's machine."""
    fabric = load_cluster(name)
    assert fabric.name == name
    assert fabric.facts
    for known in fabric.facts.values():
        assert known.evidence in GRADES
        assert len(known.source) > 5
        assert "/work" not in known.source
    assert len(fabric.gpus) == fabric.facts["gpus"].value * len(fabric.hosts)


def test_bytes_go_over_nvswitches_by_their_links() -> None:
    """A GPU sends as much over each NVSwitch as it has links to it."""
    fabric = compile_graph(host.build(Params()))
    shares = {
        fabric.links.dst[path[0]]: share
        for path, share in fabric.routes("gpu0", "gpu1")
    }
    assert shares == {
        f"nvswitch{at}": pytest.approx(count / 18)
        for at, count in enumerate((5, 4, 4, 5))
    }


def test_wrong_parameters_are_reported_together() -> None:
    """Each with its name."""
    with pytest.raises(InputError) as caught:
        Params(gpus=0, nics=-1, nvlinks=(5, 0))
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "gpus",
        "nics",
        "nvlinks",
    }


def test_a_link_without_bandwidth_is_named() -> None:
    """The check says which link, which column, what was found."""
    dead = replace(Params().nvlink, bandwidth=Quantity(0.0, "guess", "a broken link"))
    with pytest.raises(
        InputError,
        match=r"host: gpu0-nvswitch0.bandwidth: found 0.0, expected a finite number above 0",
    ):
        compile_graph(host.build(Params(nvlink=dead)))


def test_a_host_without_any_common_link_is_not_a_cluster() -> None:
    """GPUs on one host always share at least a CPU; a graph of two islands is refused."""
    import networkx as nx

    from prestep.topologies.fabric import Fabric

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from(["a", "b"], kind="gpu", host="h")
    graph.add_nodes_from(["s", "t"], kind="nvswitch")
    for gpu, switch in (("a", "s"), ("b", "t")):
        for ends in ((gpu, switch), (switch, gpu)):
            graph.add_edge(*ends, kind="nvlink", bandwidth=1e9, latency=1e-6)
    with pytest.raises(InputError, match="b: found no path from a"):
        Fabric.from_graph(graph)
    graph.add_edge("s", "t", kind="nvlink", bandwidth=1e9, latency=1e-6)
    with pytest.raises(InputError, match="expected the reverse link t-s too"):
        Fabric.from_graph(graph)
