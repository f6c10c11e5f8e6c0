"""Clusters as NetworkX graphs: there and back, edits that count, and mistakes, all of them together."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from click.testing import CliRunner

import prestep
from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.tools.catalog import find_scenario
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.graph import from_graph, to_graph
from prestep.topologies.files.interchange import differences

SMALL = ("dgx-h100", "h200-leafspine-2x2", "gb200-nvl4", "dgx-1v", "mi300x")
#: Links up to which every bundled cluster is written, read and compared.
MOST = 9_000


def graphml(graph: nx.MultiDiGraph[str], folder: Path) -> Any:
    """The graph through a file of NetworkX's own."""
    nx.write_graphml(graph, folder / "a.graphml")
    return nx.read_graphml(folder / "a.graphml", force_multigraph=True)


def node_link(graph: nx.MultiDiGraph[str], folder: Path) -> Any:
    """The graph through JSON as NetworkX writes it when nobody says otherwise."""
    (folder / "a.json").write_text(json.dumps(nx.node_link_data(graph)))
    return nx.node_link_graph(json.loads((folder / "a.json").read_text()))


def busbw(cluster: Any, op: str = "all_reduce", **options: Any) -> list[float]:
    """Bus bandwidths of a collective over all GPUs at two sizes."""
    sizes = {"min_bytes": "1M", "max_bytes": "256M"}
    frame = prestep.collective(cluster, op, **(sizes | options))
    return [float(frame.busbw.iloc[0]), float(frame.busbw.iloc[-1])]


def double(graph: nx.MultiDiGraph[str], kind: str, factor: float = 2.0) -> Any:
    for _, _, data in graph.edges(data=True):
        if data["kind"] == kind:
            data["bandwidth"] *= factor
    return graph


def cut(graph: nx.MultiDiGraph[str], a: str, b: str) -> Any:
    graph.remove_edges_from([(a, b), (b, a)])
    return graph


@pytest.mark.parametrize("name", cluster_names())
def test_every_bundled_cluster_is_the_same_as_a_graph(
    tmp_path: Path, name: str
) -> None:
    """In memory, through GraphML and through node-link JSON: nodes, links, facts and files to the last bit."""
    fabric = load_cluster(name)
    if len(fabric.links) > MOST:
        pytest.skip("a smaller cluster of the same family is among the others")
    graph = to_graph(fabric)
    graphs = [graph, graphml(graph, tmp_path), node_link(graph, tmp_path)]
    for again in map(from_graph, graphs):
        assert differences(fabric, again) == []
        assert differences(again, fabric) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", cluster_names())
def test_every_bundled_cluster_predicts_the_same_as_a_graph(name: str) -> None:
    """Collectives of four kinds and a training step, to 1e-9."""
    fabric = load_cluster(name)
    gpus = min(16, len(fabric.gpus))
    if len(fabric.links) > MOST or gpus < 2:
        pytest.skip("a smaller cluster of the same family is among the others")
    graph = to_graph(fabric)
    for op in ("all_reduce", "all_gather", "all_to_all", "sendrecv"):
        expected = busbw(name, op, ranks=gpus)
        assert busbw(graph, op, ranks=gpus) == pytest.approx(expected, rel=1e-9)
    changes = {"parallel.dp": gpus, "cluster.gpus": gpus, "training.micro_batch": 32}
    changes |= {"training.global_batch": 32 * gpus}
    one = prestep.simulate("mlp-ddp4", changes, cluster=graph)
    other = prestep.simulate("mlp-ddp4", changes, cluster=name)
    assert one.step_time == pytest.approx(other.step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"), [("h200-leafspine-2x2", "spine"), ("dgx-h100", "nvlink")]
)
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_an_edited_rate_is_a_what_if(name: str, kind: str, factor: float) -> None:
    """As `--set kind.bandwidth=2x`: links, their wire, grades, and times; the source says that it was edited."""
    graph = double(prestep.to_graph(name), kind, factor)
    wanted = with_overrides(load_cluster(name), {f"{kind}.bandwidth": f"{factor}x"})
    fabric = from_graph(graph)
    for column in ("bandwidth", "raw", "evidence", "latency", "latency_evidence"):
        ours, theirs = (getattr(each.links, column) for each in (fabric, wanted))
        assert (ours == theirs).all()
    edited = fabric.links.source[fabric.links.of_kind(kind)]
    assert set(edited) == {"edited in the graph"}
    expected = busbw(name, overrides=[f"{kind}.bandwidth={factor}x"])
    assert busbw(graph) == pytest.approx(expected, rel=1e-9)
    if factor < 1:  # twice a spine is more than ports can fill
        assert busbw(graph)[1] < 0.9 * busbw(name)[1]


def test_changed_gpus_survive() -> None:
    """Factors and values of single GPUs are attributes of theirs; a factor of a factor is their product."""
    changes = {"gpu[3].flops": "0.5x", "gpu.clock": "0.9x", "gpu[3].clock": "0.5x"}
    changes["gpu[1].hbm_bandwidth"] = "2 TB/s"
    fabric = load_cluster("dgx-h100", overrides=changes)
    graph = to_graph(fabric)
    assert graph.nodes["gpu3"]["flops"] == "0.5x"
    assert graph.nodes["gpu3"]["clock"] == "0.45x"
    assert graph.nodes["gpu1"]["hbm_bandwidth"] == 2e12
    options = {"cluster.gpus": 4}
    expected = prestep.simulate("mlp-ddp4", options | changes, cluster="dgx-h100")
    found = prestep.simulate("mlp-ddp4", options, cluster=graph)
    assert found.step_time == pytest.approx(expected.step_time, rel=1e-9)


def test_what_is_taken_away_and_added_counts() -> None:
    """A link less is less bandwidth; the same link again is as before, wherever it stands among the others."""
    whole = busbw("dgx-h100")
    graph = cut(prestep.to_graph("dgx-h100"), "gpu0", "nvswitch0")
    assert busbw(graph)[1] < 0.9 * whole[1]
    kept = load_cluster("dgx-h100").graph
    for ends in (("gpu0", "nvswitch0"), ("nvswitch0", "gpu0")):
        graph.add_edge(*ends, **kept.edges[(*ends, 0)])
    assert busbw(graph) == pytest.approx(whole, rel=1e-9)
    graph.remove_node("gpu7")
    assert len(prestep.from_graph(graph).gpus) == 7


def test_a_switch_less_is_the_same_as_off() -> None:
    """`remove_node` is `--set nvswitch[1]=off`."""
    graph = prestep.to_graph("dgx-h100")
    graph.remove_node("nvswitch1")
    expected = busbw("dgx-h100", overrides=["nvswitch1=off"])
    assert busbw(graph) == pytest.approx(expected, rel=1e-9)


def test_parallel_edges_are_one_link_with_their_count() -> None:
    """Eighteen edges of a GPU to its switch are a row of eighteen; edges that differ are refused."""

    def host(*rates: str) -> nx.MultiGraph[str]:
        graph: nx.MultiGraph[str] = nx.MultiGraph(gpu_model="h100")
        graph.add_node("switch", kind="nvswitch", host="host0")
        for at in range(4):
            graph.add_node(at, kind="gpu", host="host0")
            for rate in rates:
                edge = {"kind": "nvlink", "bandwidth": rate, "latency": "0.3 us"}
                graph.add_edge(at, "switch", **edge)
        return graph

    links = from_graph(host(*["21 GB/s"] * 18)).links
    assert links.count.tolist() == [18] * 8
    assert links.bandwidth.tolist() == pytest.approx([18 * 21e9] * 8)
    with pytest.raises(InputError, match="2 edges that differ in kind, rate or lat"):
        from_graph(host("21 GB/s", "22 GB/s"))


def test_a_job_that_lost_a_gpu_is_refused() -> None:
    """Seven GPUs are no layout of four, and no eight ranks; the sentence names both."""
    graph = prestep.to_graph("h200-host-4")
    graph.remove_node("gpu3")
    with pytest.raises(InputError, match="= 4, expected 3, the number of GPUs"):
        prestep.simulate("mlp-ddp4", cluster=graph)


def test_gpus_that_only_gpus_join_are_refused() -> None:
    """Whichever of them is the middle one: the first, too, from which each of the others can be reached."""
    edge = {"kind": "nvlink", "bandwidth": 1e11, "latency": 1e-6}
    for middle in ("a", "b"):
        graph: nx.Graph[str] = nx.Graph(gpu_model="h100")
        graph.add_nodes_from("abc", kind="gpu", host="host0")
        graph.add_edges_from([(middle, end, edge) for end in "abc" if end != middle])
        with pytest.raises(InputError, match="c: found no path from"):
            prestep.collective(graph)


def test_all_mistakes_come_together() -> None:
    """Of attributes, units, kinds, grades, facts, ends and directions."""
    graph = prestep.to_graph("dgx-h100")
    cut(graph, "gpu6", "nvswitch3")
    graph.remove_edge("gpu4", "nvswitch0")
    graph.nodes["gpu3"]["kind"] = "GPU"
    graph.nodes["gpu1"]["flop"] = 3
    graph.nodes["cpu0"]["clock"] = "0.9x"
    graph["gpu0"]["nvswitch0"][0]["bandwidth"] = 400
    graph["gpu0"]["nvswitch1"][0]["latency"] = 5
    graph["gpu0"]["nvswitch2"][0]["bandwith"] = 5e9
    graph["cpu0"]["memory0"][0]["bandwidth"] = "50 GB"
    graph["cpu0"]["pcieswitch0"][0]["count"] = 0
    graph["cpu0"]["pcieswitch1"][0]["evidence"] = "sure"
    graph["cpu0"]["pcieswitch2"][0]["kind"] = "nvlink4"
    graph.graph |= {"host_memory": "2 TBs", "gpu": "h100"}
    graph.add_node("gpu9", kind="gpu", host="host0")
    with pytest.raises(InputError) as error:
        prestep.simulate("mlp-ddp4", cluster=graph)
    keys = {mistake.key for mistake in error.value.mistakes}
    assert keys == {
        "graph.gpu",
        "graph.host_memory",
        "node.flop",
        'node "gpu3".kind',
        'node "cpu0".clock',
        "edge.bandwith",
        "edge gpu0-nvswitch0.bandwidth",
        "edge gpu0-nvswitch1.latency",
        "edge cpu0-memory0.bandwidth",
        "edge cpu0-pcieswitch0.count",
        "edge cpu0-pcieswitch2.kind",
        "cpu0-pcieswitch1.evidence",
        "nvswitch0-gpu4",
        "gpu9",
    }
    said = str(error.value)
    for hint in ('"flops"', '"gpu"', '"bandwidth"', "400 Gbit/s", "5 us", '"TB"'):
        assert hint in said


@pytest.mark.parametrize("odd", [[1], {"a": 1}, None, 3.0])
def test_what_is_no_graph_is_refused(odd: Any) -> None:
    """With what it is."""
    with pytest.raises(InputError, match=f"found a {type(odd).__name__}, expected"):
        prestep.load_cluster(odd)


def test_a_fact_may_be_an_attribute_of_its_own() -> None:
    """NVLink SHARP switched off is a slower all-reduce; a text has its unit."""
    graph = prestep.to_graph("dgx-h100")
    graph.graph |= {"nvlink_sharp": False, "host_memory": "1 TB"}
    facts = from_graph(graph).cluster_facts
    assert (facts.nvlink_sharp, facts.host_memory) == (False, 1e12)
    assert busbw(graph)[1] < busbw("dgx-h100")[1]


def test_drawing_is_noted_and_costs_nothing() -> None:
    """Positions and colours say nothing of a cluster; everything else that is unknown is refused."""
    graph = prestep.to_graph("dgx-h100")
    nx.set_node_attributes(graph, "red", "color")
    fabric: Fabric = from_graph(graph)
    assert fabric.facts["dropped: node attribute color"].value == len(fabric.nodes)
    nx.set_node_attributes(graph, 1.0, "weight")
    with pytest.raises(InputError, match=r"node.weight: found an unknown attribute"):
        from_graph(graph)


#: Nodes and links of a DGX H100 without its network: 8 x (GPU, NIC, disk, PCIe switch), 4 NVSwitches, 2 CPUs with
#: memory; 32 bundles of NVLinks, 4 x 8 of PCIe, 2 memories, 1 between sockets. Each of its NICs has one link out.
NODES, INNER, NICS = 40, 67, 8


@pytest.mark.parametrize(
    ("family", "hosts", "switches", "cables"),
    [
        ("host", 1, 1, 0),
        ("leaf_spine", 4, 2, 1),
        ("fat_tree", 8, 2 + 4, 2 * 4),
        ("rail_optimized", 32, 8 + 8, 8 * 8),
        ("superpod", 32, 8 + 4, 8 * 4),
        ("torus", 4 * 4, 4 * 4, 2 * 4 * 4),
        ("ethernet_clos", 8, 4 + 16, 4 * 16),
        # 20 switches in groups of 4, and a cable between every two of the 5 groups
        ("dragonfly", 18, 20, 5 * 6 + 10),
    ],
)
def test_a_family_is_a_graph_of_its_formula(
    family: str, hosts: int, switches: int, cables: int
) -> None:
    """Hosts, switches above, and an edge in each direction for every bundle of cables; and back without loss."""
    module = importlib.import_module(f"prestep.topologies.{family}")
    fabric = compile_graph(module.build(module.Params()))
    graph = fabric.to_graph()
    assert len(graph) == hosts * NODES + switches
    links = hosts * (INNER + NICS) + cables
    assert graph.number_of_edges() == 2 * links
    assert differences(fabric, from_graph(graph)) == []


@pytest.mark.parametrize("name", ["a.graphml", "a.json"])
def test_files_stand_wherever_a_cluster_does(tmp_path: Path, name: str) -> None:
    """After `--cluster` with a name in the scenario, in `--set`, and in a scenario's own table: one step time."""
    graph, path = double(prestep.to_graph("h200-host-4"), "nvlink"), tmp_path / name
    if path.suffix == ".json":
        path.write_text(json.dumps(nx.node_link_data(graph)))
    else:
        nx.write_graphml(graph, path)
    expected = prestep.simulate("mlp-ddp4", cluster=graph).step_time
    own = tmp_path / "own.toml"
    bundled = Path(str(find_scenario("mlp-ddp4"))).read_text()
    own.write_text(bundled.replace('name = "h200-host-4"', f'file = "{name}"'))
    assert f'file = "{name}"' in own.read_text()
    for words in (
        ["mlp-ddp4", "--cluster", str(path)],
        ["mlp-ddp4", "--set", f"cluster.file={path}"],
        [str(own)],
    ):
        done = CliRunner().invoke(cli.main, ["run", *words, "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert told["step_time"] == pytest.approx(expected, rel=1e-9)
    assert prestep.simulate("mlp-ddp4", cluster=path).step_time == expected


def test_a_graph_has_its_own_hosts() -> None:
    """A scenario's number of hosts goes with its cluster; one that is asked for beside a graph has to be the graph's."""
    graph = prestep.to_graph("dgx-h100")
    changes = {"parallel.dp": 8, "training.global_batch": 2048}
    scenario = prestep.load("mlp-ddp4", changes, cluster=graph)
    assert scenario.cluster.hosts is None
    with pytest.raises(InputError, match="hosts: found 2, expected 1, as in the graph"):
        prestep.load("mlp-ddp4", changes | {"cluster.hosts": 2}, cluster=graph)
    with pytest.raises(prestep.PrestepError, match="give one of them"):
        prestep.load("mlp-ddp4", {"cluster.name": "dgx-h100"}, cluster=graph)


def test_every_function_takes_a_graph(tmp_path: Path) -> None:
    """Comparisons, tornadoes, sweeps and replays say of a graph what they say of its name."""
    name = "h200-host-4"
    graph = prestep.to_graph(name)
    for function in (
        lambda cluster: prestep.compare("mlp-ddp4", {"nvlink.bandwidth": "2x"}, cluster=cluster),
        lambda cluster: prestep.tornado("mlp-ddp4", ["link-kind"], cluster=cluster),
        lambda cluster: prestep.sweep("mlp-ddp4", {"nvlink.bandwidth": ["1x", "2x"]}, tmp_path / str(cluster)[:5], "threads", 1, cluster=cluster)[["step_time", "error"]],
    ):  # fmt: skip
        assert function(graph).equals(function(name))


def without(graph: nx.MultiDiGraph[str]) -> Iterator[nx.MultiDiGraph[str]]:
    """The graph without a node of every kind, without all of a kind, and without a link between every two kinds."""
    kinds = nx.get_node_attributes(graph, "kind")
    pairs = {(kinds[a], kinds[b]): (a, b) for a, b in graph.edges()}
    groups = [[node for node in graph if kinds[node] == k] for k in {*kinds.values()}]
    for nodes in (part for group in groups for part in (group, group[:1])):
        less = graph.copy()
        less.remove_nodes_from(nodes)
        yield less
    for a, b in pairs.values():
        yield cut(graph.copy(), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200-leafspine-2x2", "gh200-quad", "l40s-host"])
def test_whatever_is_taken_away_runs_or_is_refused(name: str) -> None:
    """No traceback, and no answer in which a slower fabric is faster."""
    whole = {op: busbw(name, op)[1] for op in ("all_gather", "sendrecv")}
    for graph in without(prestep.to_graph(name)):
        gpus = [kind for _, kind in graph.nodes(data="kind") if kind == "gpu"]
        for op, most in whole.items():
            try:
                rate = busbw(graph, op)[1]
            except prestep.PrestepError as error:
                assert "expected" in str(error)
                continue
            if len(gpus) == len(prestep.load_cluster(name).gpus):
                assert rate <= most * (1 + 1e-9)


def test_a_graph_needs_no_memory() -> None:
    """GPUs, NICs and a switch are enough for a step that copies nothing to its hosts."""
    graph = nx.MultiDiGraph(gpu_model="h100", name="two-hosts")
    graph.add_node("sw0", kind="switch")
    for host in ("h0", "h1"):
        graph.add_node(f"{host}/gpu0", kind="gpu", host=host)
        graph.add_node(f"{host}/nic0", kind="nic", host=host)
        for kind, one, other in (
            ("pcie", f"{host}/gpu0", f"{host}/nic0"),
            ("nic", f"{host}/nic0", "sw0"),
        ):
            for ends in ((one, other), (other, one)):
                graph.add_edge(*ends, kind=kind, bandwidth="48 GB/s", latency="1 us")
    changes = {"parallel.dp": 2, "training.global_batch": 4}
    result = prestep.simulate("llama1b-ddp4", cluster=graph, changes=changes)
    assert result.scenario["hosts"] == 2 and result.step_time > 0
