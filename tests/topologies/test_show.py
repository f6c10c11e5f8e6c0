"""Listing, picture and export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from prestep.sim.errors import InputError
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.interchange import export_file
from prestep.topologies.show import listing
from prestep.topologies.show.summary import summary

DGX = load_cluster("dgx-h100")


@pytest.mark.parametrize("name", cluster_names())
def test_a_listing_names_every_kind_of_node_and_link(name: str) -> None:
    """With counts and grades, in lines that fit."""
    fabric = load_cluster(name)
    text = listing.render(fabric, width=100)
    assert all(len(line) <= 100 for line in text.splitlines())
    first = {line.split()[0] for line in text.splitlines() if line}
    assert set(fabric.nodes.kinds) | set(fabric.links.kinds) <= first


def test_a_degraded_link_has_a_row_and_a_name_of_its_own() -> None:
    """And holds its path back: shares do not follow speed."""
    text = listing.render(with_overrides(DGX, {"gpu0-nvswitch1.bandwidth": "0.5x"}))
    assert any(
        line.startswith("nvlink") and line.endswith("gpu0-nvswitch1")
        for line in text.splitlines()
    )
    # 4 of 18 links at half of 21.83 GB/s: 18 x 21.83 / 2.
    assert "196.5 GB/s in all" in text


@pytest.mark.parametrize(
    ("name", "hosts", "rate"),
    [
        ("dgx-h100-superpod", 128, "48 GB/s"),
        ("aws-p5", 2, "48.8 GB/s"),
        ("dgx-h100", 1, "392.9 GB/s"),
    ],
)
def test_a_pair_gets_what_the_links_of_all_its_ways_let_through(
    name: str, hosts: int, rate: str
) -> None:
    """However many spines there are, all ways share the NIC; four NICs of one GPU, or the NVLinks, add up."""
    text = listing.render(load_cluster(name, hosts))
    assert f"  {rate} in all" in text.splitlines()


@pytest.mark.parametrize("name", ["dgx-h100", "aws-p5"])
def test_the_bisection_of_a_host_is_that_of_its_nvlinks(name: str) -> None:
    """Half of the GPUs times 450 GB/s, both ways: nothing goes over PCIe or NICs where NVLink leads."""
    assert dict(summary(load_cluster(name)))["bisection"].startswith("3.6 TB/s")


def test_json_and_graphml_hold_the_same_graph(tmp_path: Path) -> None:
    """NetworkX reads both back into the same fabric."""
    for name in ("a.json", "a.graphml"):
        export_file(DGX, tmp_path / name)
    data = json.loads((tmp_path / "a.json").read_text())
    graphs: tuple[Any, ...] = (
        nx.node_link_graph(data, source="src", target="dst", edges="links"),
        nx.read_graphml(tmp_path / "a.graphml", force_multigraph=True),
    )
    for graph in graphs:
        again = Fabric.from_graph(graph, DGX.name, DGX.gpu_model)
        assert again.nodes == DGX.nodes
        for column in DGX.links.__dataclass_fields__:
            assert (getattr(again.links, column) == getattr(DGX.links, column)).all()


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(InputError, match=r"\.graphml"):
        export_file(DGX, tmp_path / "a.gml")
    with pytest.raises(InputError, match=r"\.svg"):
        listing.picture(DGX, tmp_path / "a.jpeg")
    assert not list(tmp_path.iterdir())


def test_a_route_needs_no_library_of_other_tasks() -> None:
    """Those that draw, simulate or tabulate cost more to import than a route should."""
    code = """
import sys, topologies
fabric = topologies.load_cluster("dgx-h100", overrides={"nvlink.latency": "2x"})
fabric.routes("gpu0", "gpu7")
print(sorted({"matplotlib", "simpy", "pandas"} & set(sys.modules)))
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
