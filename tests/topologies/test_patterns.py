"""Graphs of patterns: what stands for many nodes and cables is compiled into all of them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest

import prestep
from prestep.sim import plugins
from prestep.sim.errors import InputError
from prestep.topologies import host
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_hosts, join, new_graph
from tests.sample import together

PARAMS = host.Params()
FAMILIES = sorted(plugins.providers("prestep.topologies", "build"))


def same(one: Fabric, other: Fabric) -> bool:
    """Whether two clusters have the same nodes and links in the same order."""
    return one.nodes == other.nodes and all(
        (getattr(one.links, column) == getattr(other.links, column)).all()
        for column in one.links.__dataclass_fields__
    )


@together("family", FAMILIES)
def test_a_family_compiles_to_the_graph_that_is_written_out(family: str) -> None:
    """Compiled, read as any graph, and written out and read again: one cluster."""
    module: Any = plugins.load("prestep.topologies", family)
    graph = module.build(module.Params())
    assert isinstance(graph, nx.MultiDiGraph)
    compiled = compile_graph(graph)
    assert same(Fabric.from_graph(graph), compiled)
    assert same(Fabric.from_graph(compiled.to_graph()), compiled)


def three(pattern: nx.MultiDiGraph[str]) -> nx.MultiDiGraph[str]:
    """Three hosts under a leaf."""
    graph = new_graph("three", "h100")
    nics = add_hosts(graph, "host", pattern, copies=3)
    graph.add_node("leaf", kind="leaf")
    join(graph, "host", "leaf", "nic", PARAMS.nic, tail_ports=nics)
    return graph


def test_a_written_out_host_is_a_pattern_too() -> None:
    """The edges of `to_graph` are repeated as cables are, and changes of a GPU in every copy."""
    written = prestep.to_graph(host.pattern(PARAMS, "host0"))
    cables, edges = three(host.pattern(PARAMS)), three(written)
    assert same(Fabric.from_graph(edges), Fabric.from_graph(cables))
    written.nodes["gpu3"]["clock"] = "0.9x"
    [change] = Fabric.from_graph(edges).gpu_changes
    assert change.gpus == ("host0/gpu3", "host1/gpu3", "host2/gpu3")


Change = Callable[[Any], object]


@together(
    ("change", "mistake"),
    [
        (lambda g: g.edges["host", "leaf", 0].update(tail_ports=["nic9"]), "nic9"),
        (lambda g: g.edges["host", "leaf", 0].update(tail_ports=3), "list of names"),
        (lambda g: g.edges["host", "leaf", 0].update(pairs=[(3, 0)]), "copies of both"),
        (lambda g: g.edges["host", "leaf", 0].update(pairs="ab"), "pairs of numbers"),
        (lambda g: g.edges["host", "leaf", 0].update(spec=3), "a LinkSpec"),
        (lambda g: g.edges["host", "leaf", 0].update(link="q"), "a whole number"),
        (lambda g: g.edges["host", "leaf", 0].update(count="3"), "a whole number"),
        (lambda g: g.edges["host", "leaf", 0].update(bandwith=3), "unknown attribute"),
        (lambda g: g.edges["host", "leaf", 0].pop("kind"), "no attribute"),
        (
            lambda g: g.add_edge("host", "leaf", kind="nic", bandwidth=1e9),
            "with a spec",
        ),
        (lambda g: g.nodes["host"].update(copies="x"), "copies"),
        (lambda g: g.nodes["host"].update(prefix=0.5), "prefix"),
        (lambda g: g.nodes["host"].update(pattern="x"), "of one host"),
        (
            lambda g: g.nodes["host"]["pattern"].add_node("a", pattern=g),
            "host in a host",
        ),
    ],
)
def test_what_is_not_understood_is_refused(change: Change, mistake: str) -> None:
    """Each mistake in a pattern, its copies or its cables says what was expected."""
    graph = three(host.pattern(PARAMS))
    change(graph)
    with pytest.raises(InputError, match=mistake):
        Fabric.from_graph(graph)
