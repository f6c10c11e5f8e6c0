"""Clusters folded by symmetry, their pictures, and the numbers beside them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest

from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.show.drawing import draw, write
from prestep.topologies.show.folding import MOST, Class, fold
from prestep.topologies.show.summary import (
    bisection_bound,
    diameter,
    oversubscription,
    summary,
)

POD = load_cluster(
    "dgx-h100-superpod", hosts=128, overrides={"storage_nic": "off", "storage": "off"}
)
HOSTS = {
    "dgx-h100-superpod": 3,
    "rail-h100": 4,
    "roce-h100": 4,
    "gb200-nvl72": None,
    "h200-leafspine-4x1": None,
    "gh200-quad": None,
}
CLUSTERS = list(HOSTS)


def by_kind(classes: tuple[Class, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for c in classes:
        found[c.kind] = found.get(c.kind, 0) + c.count
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_folding_loses_no_node_and_no_cable(name: str) -> None:
    """Counts of classes and of edges are those of the cluster, and no picture has more classes than fit it."""
    fabric = load_cluster(name, HOSTS[name])
    folded = fold(fabric)
    counts = {kind: len(fabric.nodes.of_kind(kind)) for kind in fabric.nodes.kinds}
    assert by_kind(folded.classes) == counts and len(folded.classes) <= max(
        MOST, len(counts)
    )
    assert (
        sum(edge.cables for edge in folded.edges) == int(fabric.links.count.sum()) // 2
    )


def test_a_superpod_is_one_host_a_leaf_and_a_spine() -> None:
    """All 1,024 GPUs are alike; of a host's switches those with 5 links of each GPU differ from those with 4."""
    classes = fold(POD).classes
    assert [(c.kind, c.count) for c in classes if not c.hosts] == [
        ("leaf", 32),
        ("spine", 16),
    ]
    assert [c.per_host for c in classes if c.kind == "nvswitch"] == [2, 2]
    assert [c.count for c in classes if c.kind == "gpu"] == [1024]


def test_one_slow_link_stands_apart() -> None:
    """The NIC with half its speed is a class of its own, the others stay together."""
    folded = fold(with_overrides(POD, {"nic[host3.2].bandwidth": "0.5x"}))
    nics = sorted((c.count, c.example) for c in folded.classes if c.kind == "nic")
    assert nics[0] == (1, "host3/nic2") and sum(count for count, _ in nics) == 1024


def test_numbers_of_a_superpod() -> None:
    """Full bisection of 1,024 ports of 50 GB/s, eight links across, nothing oversubscribed."""
    assert bisection_bound(POD) == pytest.approx(1024 * 50e9)
    steps, delay, _, _ = diameter(POD)
    assert steps == 8 and delay == pytest.approx(4.4e-6)
    assert [(t.kind, t.least, t.most) for t in oversubscription(POD)] == [
        ("leaf", 1.0, 1.0)
    ]


def test_numbers_of_an_oversubscribed_leaf() -> None:
    """Two ports down, one as fast up: 2 to 1, with and without a switch above."""
    (leaf,) = oversubscription(load_cluster("h200-leafspine-4x1"))
    assert (leaf.kind, leaf.least) == ("leaf", 2.0)
    half = oversubscription(with_overrides(POD, {"spine.bandwidth": "0.5x"}))
    assert str(half[0]) == "leaf 2:1"


def test_the_summary_is_for_people() -> None:
    """A single GPU has neither bisection nor diameter."""
    assert {what for what, _ in summary(load_cluster("rail-h100", 4))} == {
        "bisection",
        "diameter",
        "oversubscription",
    }
    assert summary(load_cluster("gh200")) == []


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_drawing_names_every_tier_with_its_count(name: str) -> None:
    """Beside its row; every host kind of device is in the inside of one; no cable ends where nothing is."""
    fabric = load_cluster(name, HOSTS[name])
    text = str(draw(fabric))
    root = ElementTree.fromstring(text)
    outside = [
        k for k, h in zip(fabric.nodes.kinds, fabric.nodes.hosts, strict=True) if not h
    ]
    if len(fabric.hosts) > 1:
        assert f">{len(fabric.hosts):,} hosts<" in text
        for kind in {kind for kind in outside if not kind.startswith("storage")}:
            assert f">{outside.count(kind):,} {kind}" in text
    names = {node.text for node in root.iter("title")}
    devices = {
        n
        for n, h in zip(fabric.nodes.names, fabric.nodes.hosts, strict=True)
        if h == fabric.hosts[0]
    }
    assert {kind_of(fabric, n) for n in devices} == {
        kind_of(fabric, n) for n in names & devices
    }
    assert {"NaN", "inf"}.isdisjoint(text.replace('"', " ").split())


def kind_of(fabric: Fabric, name: str | None) -> str:
    return fabric.nodes.kinds[fabric.node_index(name or "")]


@pytest.mark.parametrize(
    ("name", "hosts", "most"),
    [("rail-h100", 2048, 60_000), ("alcf-polaris", None, 60_000)],
)
def test_what_is_alike_folds(name: str, hosts: int | None, most: int) -> None:
    """16,384 GPUs are as small a drawing as 64: it says how many more there are."""
    text = str(draw(load_cluster(name, hosts)))
    assert len(text) < most and "more like it" in text


def test_any_graph_is_drawn() -> None:
    """Hosts that no switch joins, switches of a kind of one's own, a single GPU."""
    for switches in ((), ("plane",)):
        graph = nx.MultiDiGraph()
        for at in range(3):
            graph.add_node(f"h{at}/gpu0", kind="gpu", host=f"h{at}")
        graph.add_nodes_from(switches, kind="plane")
        pairs = [(f"h{at}/gpu0", s) for at in range(3) for s in switches] or [
            ("h0/gpu0", "h1/gpu0"),
            ("h1/gpu0", "h2/gpu0"),
        ]
        for a, b in pairs:
            for src, dst in ((a, b), (b, a)):
                graph.add_edge(src, dst, kind="nic", bandwidth=1e9, latency=1e-6)
        text = str(draw(Fabric.from_graph(graph, "mine", "h100")))
        assert ">3 hosts<" in text and text.count('class="cable') == len(pairs)
    assert "gpu0" in str(draw(load_cluster("gh200")))


def test_the_same_cluster_gives_the_same_bytes(tmp_path: Path) -> None:
    """A file of its own: with a name, a style, and nothing that changes."""
    fabric = load_cluster("dgx-h100-superpod", 2)
    for name in ("a.svg", "b.svg"):
        write(fabric, tmp_path / name)
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert (tmp_path / "b.svg").read_text("utf-8") == text
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "dgx-h100-superpod" in text and "<style>" in text


def test_groups_of_a_dragonfly_stand_side_by_side(tmp_path: Path) -> None:
    """The first and the last are drawn, by name, with cables among switches and between groups; all hosts are counted."""
    file = tmp_path / "dragonfly.toml"
    file.write_text('family = "dragonfly"\nhosts = 24\n', encoding="utf-8")
    text = str(draw(load_cluster(file), with_host=False))
    words = [node.text for node in ElementTree.fromstring(text).iter("text")]
    assert {"24 switches", "24 hosts", "group0"} <= set(words)
    assert {"local: 3 × 48 GB/s per switch", "global: 15 × 48 GB/s in all"} <= set(
        words
    )
    assert text.count('class="group"') == 2


def test_one_plane_of_several_is_drawn() -> None:
    """Planes are alike: the words beside a row count all of their switches."""
    text = str(draw(load_cluster("spectrum-x-b300"), with_host=False))
    assert "128 spine switches" in text and "in 4 planes; one is drawn" in text
    assert "plane0/spine0" in text and "plane1" not in text


def test_cables_are_counted_at_their_lower_end() -> None:
    """What a leaf can send up is what oversubscription is judged by, however few leaves there are."""
    fabric = load_cluster("roce-h100", 4)
    assert ">16 × 48 GB/s per leaf<" in str(draw(fabric, with_host=False))


def test_gpus_that_no_switch_joins_hang_below_their_row() -> None:
    """Links among the lowest row of a host do not cross the cables that it hangs from."""
    root = ElementTree.fromstring(str(draw(load_cluster("mi300x"))))
    arcs = [p.get("d", "") for p in root.iter("path") if "Q" in p.get("d", "")]
    low = [float(y) for d in arcs for y in [d.split("Q")[0].split(",")[1]]]
    high = [float(d.split("Q")[1].split(" ")[0].split(",")[1]) for d in arcs]
    assert sum(turn > edge for edge, turn in zip(low, high, strict=True)) >= 21
