"""Node-link JSON, GraphML, InfraGraph and ASTRA-sim: there and back, and errors by element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.exchanges.collective import collective
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import importers, interchange
from prestep.topologies.files.bundled import cluster_names
from prestep.topologies.files.importers._text import Source
from prestep.topologies.files.interchange import differences
from prestep.topologies.foreign import _yaml, astra_sim, infragraph
from tests.sample import together

CLOS: dict[str, Any] = {
    "name": "clos",
    "devices": [
        {
            "name": "server",
            "components": [
                {"name": "xpu", "count": 2, "choice": "xpu"},
                {"name": "nvlsw", "count": 1, "choice": "switch"},
                {"name": "card", "count": 2, "choice": "device"},
            ],
            "links": [{"name": "nvlink"}, {"name": "pcie"}],
            "edges": [
                {
                    "ep1": {"component": "xpu"},
                    "ep2": {"component": "nvlsw"},
                    "scheme": "many2many",
                    "link": "nvlink",
                },
                {
                    "ep1": {"component": "xpu[0:2]"},
                    "ep2": {"device": "card[0:2]", "component": "nic[0]"},
                    "scheme": "one2one",
                    "link": "pcie",
                },
            ],
        },
        {
            "name": "card",
            "components": [{"name": "nic", "count": 1, "choice": "nic"}],
            "links": [],
            "edges": [],
        },
        {
            "name": "switch",
            "components": [{"name": "asic", "count": 1, "choice": "cpu"}],
            "links": [],
            "edges": [],
        },
    ],
    "links": [
        {
            "name": "eth",
            "physical": {
                "bandwidth": {
                    "choice": "gigabits_per_second",
                    "gigabits_per_second": 100,
                },
                "latency": {"choice": "us", "us": 2},
            },
        }
    ],
    "instances": [
        {"name": "host", "device": "server", "count": 2},
        {"name": "leaf", "device": "switch", "count": 1},
    ],
    "edges": [
        {
            "ep1": {"instance": "host[0:2]", "component": "card[:].nic[0]"},
            "ep2": {"instance": "leaf[0]", "component": "asic"},
            "scheme": "many2many",
            "link": "eth",
        }
    ],
}


def written(tmp_path: Path, data: object, name: str = "in.json") -> Path:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def same(one: Fabric, other: Fabric) -> bool:
    columns = one.links.__dataclass_fields__
    equal = all(
        (getattr(one.links, key) == getattr(other.links, key)).all() for key in columns
    )
    return (
        equal
        and one.nodes == other.nodes
        and one.facts == other.facts
        and one.gpu_model == other.gpu_model
    )


@pytest.mark.parametrize("suffix", ["json", "graphml"])
@pytest.mark.parametrize("name", ["aws-p5", "gh200-quad"])
def test_json_and_graphml_lose_nothing(tmp_path: Path, name: str, suffix: str) -> None:
    """Nodes, links, sources and facts come back, and the file works wherever a cluster's name does."""
    fabric, path = load_cluster(name), tmp_path / f"out.{suffix}"
    assert interchange.export_file(fabric, path) == []
    assert same(importers.read(path), fabric)
    assert same(load_cluster(path), fabric)


@pytest.mark.parametrize("format", interchange.writers())
@together("name", cluster_names())
def test_every_format_carries_every_bundled_cluster(
    tmp_path: Path, name: str, format: str
) -> None:
    """Nodes, links in both directions, grades, facts and files of constants: nothing of a step is left out."""
    fabric, path = load_cluster(name), tmp_path / f"out.{format}"
    if len(fabric.links) > 2_000:
        pytest.skip("a smaller cluster of the same family is among the others")
    assert interchange.export_file(fabric, path, format) == []
    assert differences(fabric, importers.read(path, format)) == []


@pytest.mark.parametrize("name", ["dgx-b200", "gb200-nvl4", "mi300x", "l40s-host"])
def test_collectives_take_as_long_after_a_round_trip(tmp_path: Path, name: str) -> None:
    """All formats, to 1e-9: NVLink SHARP, the GPU's constants and PCIe are those of the cluster that was written."""
    before = all_reduce(name)
    for format in interchange.writers():
        path = tmp_path / f"out.{format}.json"
        interchange.export_file(load_cluster(name), path, format)
        assert all_reduce(str(path)) == pytest.approx(before, rel=1e-9)


def all_reduce(cluster: str) -> list[float]:
    """Seconds of all-reduces of 1 MiB and 64 MiB over all GPUs."""
    report = collective(cluster, "all_reduce", min_bytes="1MiB", max_bytes="64MiB")
    return [row["time"] for row in report.to_json()]


def test_infragraph_shares_devices_and_other_tools_can_read_it(tmp_path: Path) -> None:
    """18 trays are instances of one device; the rates lie where InfraGraph has them, so an edit of them counts."""
    path = tmp_path / "out.json"
    interchange.export_file(load_cluster("gb200-nvl72"), path, "infragraph")
    data = json.loads(path.read_text())
    assert len(data["devices"]) == 3
    trays = [one for one in data["instances"] if one["device"] == "host-0"]
    assert [one["count"] for one in trays] == [18]
    [port] = [one for one in data["links"] if one["name"].startswith("nic")]
    port["physical"]["bandwidth"]["gigabytes_per_second"] = 12.5
    fabric = importers.read(written(tmp_path, data, "edited.json"))
    rows = fabric.links.of_kind("nic")
    assert fabric.links.bandwidth[rows].min() == pytest.approx(12.5e9)


def test_what_a_format_leaves_out_is_listed_with_its_value() -> None:
    """Facts, numbers of links, the GPU: one line each, as the law of arithmetic on what was taken away says."""
    fabric = load_cluster("dgx-h100")
    bare = fabric.with_facts("bare", {}).with_columns(gpu_model="h200")
    lines = differences(fabric, bare)
    assert "GPU model: h100 became h200" in lines
    assert any(line.startswith("nvlink_sharp: 1 (datasheet") for line in lines)
    assert len(lines) == 1 + len(fabric.facts)
    slower = with_overrides(fabric, {"nvlink.latency": "1 us"})
    assert "latency of 64 nvlink links: 3e-07 became 1e-06" in differences(
        fabric, slower
    )
    assert differences(fabric, fabric) == []


def test_infragraph_expands_slices_schemes_and_devices_in_devices(
    tmp_path: Path,
) -> None:
    """Both hosts, their nested cards, and the rates in the file."""
    fabric = importers.read(written(tmp_path, CLOS))
    links = fabric.links
    assert fabric.gpus == (
        "host.0.xpu.0",
        "host.0.xpu.1",
        "host.1.xpu.0",
        "host.1.xpu.1",
    )
    assert links.dst[fabric.route("host.0.xpu.1", "host.1.xpu.0")].tolist() == [
        "host.0.card.1.nic.0",
        "leaf.0.asic.0",
        "host.1.card.0.nic.0",
        "host.1.xpu.0",
    ]
    row = links.index["host.0.card.0.nic.0", "leaf.0.asic.0"]
    assert (links.bandwidth[row], links.latency[row]) == (
        pytest.approx(12.5e9),
        pytest.approx(2e-6),
    )
    assert set(links.kind[[links.index["host.0.xpu.0", "host.0.nvlsw.0"]]]) == {
        "nvlink"
    }
    assert any(
        note.startswith("assumed: bandwidth of pcie")
        for note in importers.notes(fabric)
    )


@together(
    ("old", "new", "message"),
    [
        (
            "xpu[0:2]",
            "xpu[0:9]",
            r'device server, edges\[1\].ep1: found "xpu\[0:9\]", expected an index or a slice of 2',
        ),
        ("xpu[0:2]", "xqu[0:2]", r'found "xqu".*did you mean "xpu"'),
        (
            '"link": "eth"',
            '"link": "eht"',
            r'edges\[0\].link: found "eht".*did you mean "eth"',
        ),
        (
            '"device": "switch"',
            '"device": "swich"',
            r'instance leaf.device: found "swich"',
        ),
        (
            '"gigabits_per_second": 100',
            '"gigabits_per_second": 0',
            r"link eth.bandwidth: found 0, expected a number above 0",
        ),
        (
            '"gigabits_per_second": 100',
            '"gigabits_per_second": -1',
            r"link eth.bandwidth: found -1",
        ),
        (
            "many2many",
            "all2all",
            r'scheme: found "all2all", expected one2one or many2many',
        ),
        ('"count": 2', '"count": 0', "count: found 0, expected a whole number"),
        ('"instances"', '"instance"', "instances: found nothing"),
    ],
)
def test_infragraph_wrong_files_are_told_by_element(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Device, edge, end; a close name where there is one."""
    with pytest.raises(InputError, match=message):
        infragraph.read(written(tmp_path, json.dumps(CLOS).replace(old, new)))


def test_astra_sim_dimensions_multiply(tmp_path: Path) -> None:
    """Ring, mesh and switch: links per NPU, 2^30 bytes per GB, latencies in ns; both spellings are the same."""
    text = "topology: [ Ring, FullyConnected, Switch ]  # 3D\nnpus_count: [ 4, 3, 2 ]\nbandwidth: [ 200.0, 100.0, 50.0 ]\nlatency: [ 50.0, 500.0, 2000.0 ]\n"
    old = {
        "topologies-per-dim": ["Ring", "AllToAll", "Switch"],
        "units-count": [4, 3, 2],
        "link-bandwidth": [200, 100, 50],
        "link-latency": [50, 500, 2000],
    }
    fabric, again = (
        importers.read(written(tmp_path, text, "n.yml")),
        importers.read(written(tmp_path, old)),
    )
    links = fabric.links
    assert (links.bandwidth == again.links.bandwidth).all()
    assert (len(fabric.gpus), len(fabric.hosts)) == (24, 6)
    assert [len(links.of_kind(f"dim{at}")) for at in range(3)] == [
        2 * 24,
        2 * 24,
        2 * 24,
    ]
    row = links.of_kind("dim2")[0]
    assert (links.bandwidth[row], links.latency[row]) == (
        50 * 2**30,
        pytest.approx(2e-6),
    )
    assert not interchange.unroutable(fabric, "")


def test_astra_sim_ns3_files_are_read(tmp_path: Path) -> None:
    """`nodes switches links`, then the switches, then a line per link in bits/s."""
    text = "3 1 2\n2\n2 0 400Gbps 0.0005ms 0\n2 1 200Gbps 1us 0\n"
    links = importers.read(written(tmp_path, text, "n.txt")).links
    assert links.bandwidth[links.index["switch2", "gpu1"]] == pytest.approx(25e9)
    assert links.latency[links.index["switch2", "gpu0"]] == pytest.approx(5e-7)
    with pytest.raises(InputError, match=r'line 4: found node "7"'):
        astra_sim.read(written(tmp_path, text.replace("2 1 200", "2 7 200"), "n.txt"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bandwidth", [0, 1], r"bandwidth\[0\]: found 0, expected GB/s above 0"),
        ("bandwidth", [1], r"bandwidth: found 1 entries, expected 2"),
        ("latency", [1, -1], r"latency\[1\]: found -1"),
        ("npus_count", [2, 2.5], r"npus_count\[1\]: found 2.5"),
        (
            "topology",
            ["Ring", "Swich"],
            r"topology\[1\]: found 'Swich'.*did you mean \"Switch\"",
        ),
    ],
)
def test_astra_sim_wrong_numbers_are_told_by_key(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    """Key and dimension."""
    good = {
        "topology": ["Ring", "Switch"],
        "npus_count": [2, 2],
        "bandwidth": [1, 1],
        "latency": [1, 1],
    }
    with pytest.raises(InputError, match=message):
        astra_sim.read(written(tmp_path, good | {key: value}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"bandwidth": 0},
            r"edge a-s.bandwidth: found 0, expected a finite number above 0",
        ),
        ({"bandwidth": -5.0}, r"edge a-s.bandwidth: found -5.0"),
        ({"bandwidth": "fast"}, r"edge a-s.bandwidth: found 'fast'"),
        ({"kind": ""}, r'edge a-s: found no attribute "kind"'),
        ({"dst": "z"}, r"links\[0\].dst: found 'z', expected the id of a node"),
        ({"count": 0}, r"edge a-s.count: found 0"),
    ],
)
def test_node_link_wrong_edges_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Zero and negative bandwidths, ends that do not exist."""
    edge = {"kind": "nvlink", "bandwidth": 1e9, "latency": 1e-6}
    links = [
        {"src": a, "dst": b, **edge}
        for x in ("a", "b")
        for a, b in ((x, "s"), ("s", x))
    ]
    links[0] |= change
    nodes = [
        {"id": "a", "kind": "gpu"},
        {"id": "b", "kind": "gpu"},
        {"id": "s", "kind": "switch"},
    ]
    data = {
        "directed": True,
        "multigraph": True,
        "graph": {},
        "nodes": nodes,
        "links": links,
    }
    with pytest.raises(InputError, match=message):
        importers.read(written(tmp_path, data))


def test_an_undirected_graph_counts_both_ways_and_unknown_attributes_are_noted(
    tmp_path: Path,
) -> None:
    """As NetworkX writes a plain Graph."""
    nodes = [{"id": "a", "kind": "gpu", "colour": "red"}, {"id": "b", "kind": "gpu"}]
    data = {
        "directed": False,
        "multigraph": False,
        "graph": {},
        "nodes": nodes,
        "edges": [{"source": "a", "target": "b", "kind": "nvlink", "bandwidth": 5e9}],
    }
    fabric = importers.read(written(tmp_path, data))
    assert fabric.links.bandwidth.tolist() == [5e9, 5e9]
    assert any("colour" in note for note in importers.notes(fabric))


def test_yaml_is_read_by_a_library_and_errors_name_the_line() -> None:
    """Comments, plain and block texts; what is no YAML is an error at its line."""
    text = "a:\n- x: 1  # one\n  y: |-\n    two # lines\n    here\nc: n[1-2]\nd: ~\n"
    assert _yaml.parse(Source("x"), text) == {
        "a": [{"x": 1, "y": "two # lines\nhere"}],
        "c": "n[1-2]",
        "d": None,
    }
    for wrong in ("a: [1, 2", "a: 1\n   b: 2\n  c: 3", 'a: "x'):
        with pytest.raises(InputError, match="line"):
            _yaml.parse(Source("x"), wrong)
