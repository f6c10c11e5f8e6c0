"""From a NetworkX graph in prestep's attributes to a cluster, with errors that name the element."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prestep.sim.errors import InputError
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.importers._text import MOST, Source, shown

if TYPE_CHECKING:
    import networkx as nx

_KNOWN_NODE = {"kind", "host"}
_GRADES = ("evidence", "latency_evidence", "source")
_KNOWN_EDGE = {"kind", "bandwidth", "raw", "latency", "count", "link", *_GRADES}
_KNOWN_GRAPH = {"name", "gpu_model", "family", "facts", "nccl", "kernels"}
#: Of what NetworkX itself writes into the attributes of a graph.
_OF_NETWORKX = {"node_default", "edge_default"}


def fabric_of(source: Source, graph: nx.Graph[Any]) -> Fabric:
    """The checked cluster; attributes that it does not hold are noted as dropped.

    An undirected graph counts in both directions. Nodes need `kind`, edges `kind` and `bandwidth`. Every attribute is
    of its type from here on, whatever the file had.
    """
    both = _typed(source, graph)
    given = graph.graph
    _drop(source, "graph", given, _KNOWN_GRAPH | _OF_NETWORKX)
    try:
        fabric = Fabric.from_graph(both)
    except InputError as error:
        raise source.checked(error) from None
    name = source.title
    if given.get("name"):
        name = source.text("graph.name", given["name"], "a text")
    fabric = with_attributes(source, fabric, given)
    return source.finish(fabric.with_facts(name, fabric.facts), name)


def with_attributes(source: Source, fabric: Fabric, given: Mapping[str, Any]) -> Fabric:
    """The cluster with its facts and its files of measured times, as `attributes_of` writes them."""
    facts = _facts(source, given.get("facts", {}))
    fabric = fabric.with_facts(fabric.name, facts)
    if given.get("nccl"):
        fabric = fabric.with_constants(_file(source, "nccl", given["nccl"]))
    if given.get("kernels"):
        fabric = fabric.with_kernels(_file(source, "kernels", given["kernels"]))
    return fabric


def _typed(source: Source, graph: nx.Graph[Any]) -> nx.MultiDiGraph[str]:
    """The graph in both directions, with the attributes that a cluster holds, each of its type."""
    import networkx as nx

    texts = {
        key: source.text(f"graph.{key}", graph.graph[key], "a text")
        for key in ("gpu_model", "family")
        if graph.graph.get(key)
    }
    typed: nx.MultiDiGraph[str] = nx.MultiDiGraph(**texts)
    for node, data in graph.nodes.items():
        typed.add_node(str(node), **_node(source, f'node "{node}"', data))
    for src, dst, data in graph.edges(data=True):
        edge = _edge(source, f"edge {src}-{dst}", data)
        typed.add_edge(str(src), str(dst), **edge)
        if not graph.is_directed() and src != dst:
            typed.add_edge(str(dst), str(src), **edge)
    return typed


def _node(source: Source, element: str, data: Mapping[str, Any]) -> dict[str, str]:
    """Kind and host of a node; no host is one outside every host."""
    _drop(source, "node", data, _KNOWN_NODE)
    expected = 'a kind such as "gpu" or "nvswitch"'
    if not data.get("kind"):
        source.fail(element, 'no attribute "kind"', expected)
    kind = source.text(f"{element}.kind", data["kind"], expected)
    host = data.get("host")
    if host is None or host == "":
        return {"kind": kind, "host": ""}
    return {"kind": kind, "host": source.text(f"{element}.host", host, "a host's name")}


def _edge(source: Source, element: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an edge that a cluster holds."""
    _drop(source, "edge", data, _KNOWN_EDGE)
    if not data.get("kind"):
        source.fail(element, 'no attribute "kind"', 'a kind such as "nvlink" or "pcie"')
    if "bandwidth" not in data:
        source.fail(element, 'no attribute "bandwidth"', "bytes/s in this direction")
    rate = "a finite number above 0, in bytes/s"
    edge: dict[str, Any] = {
        key: source.positive(f"{element}.{key}", data[key], rate)
        for key in ("bandwidth", "raw")
        if key in data
    }
    if "latency" in data:
        where, seconds = (
            f"{element}.latency",
            "a finite number of seconds, not negative",
        )
        edge["latency"] = source.at_least_0(where, data["latency"], seconds)
    else:
        source.assumed("latency", "edges without one have a latency of 0")
    if "count" in data:
        edge["count"] = source.whole(f"{element}.count", data["count"])
    if "link" in data:
        edge["link"] = _row(source, f"{element}.link", data["link"])
    for key in ("kind", *_GRADES):
        if key in data:
            edge[key] = _note(source, f"{element}.{key}", data[key])
    return edge


def _note(source: Source, element: str, value: object) -> str:
    """A text, which may be empty."""
    return "" if value == "" else source.text(element, value, "a text")


def _row(source: Source, element: str, value: object) -> int:
    """The place of an edge among all of them."""
    expected = f"a whole number from 0 to {64 * MOST:,}, the place of the edge"
    if not isinstance(value, int) or isinstance(value, bool):
        source.fail(element, shown(value), expected)
    if not 0 <= value <= 64 * MOST:
        source.fail(element, shown(value), expected)
    return value


def _file(source: Source, key: str, given: object) -> str:
    """The file of measured times that the graph names, relative to its own."""
    name = source.text(f"graph.{key}", given, "the name of a file")
    path = source.path.parent / name
    if "\0" in name or not path.is_file():
        expected = "the file that the exported cluster stands on"
        hint = f"copy it here, or leave {key} out for the GPU's own times"
        source.fail(f"graph.{key}", f"{shown(name)}, no such file", expected, hint)
    return str(path)


def _drop(source: Source, what: str, data: Mapping[str, Any], known: set[str]) -> None:
    for key in data.keys() - known:
        source.dropped(f"{what} attribute {key}", "a cluster has no place for it")


def _facts(source: Source, given: object) -> dict[str, Quantity]:
    """Facts as `write` leaves them: {key: [value, evidence, source]}, or that as JSON."""
    try:
        table: Any = json.loads(given) if isinstance(given, str) else given
        return {
            str(key): Quantity(float(value), str(grade), str(why))
            for key, (value, grade, why) in table.items()
        }
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        source.fail("graph.facts", shown(given), "{key: [value, evidence, source]}")


def attributes_of(fabric: Fabric) -> dict[str, Any]:
    """What a cluster is besides its nodes and links, as JSON can hold it; files by their whole paths."""
    facts = {
        key: [known.value, known.evidence, known.source]
        for key, known in fabric.facts.items()
    }
    files = {"nccl": fabric.constants, "kernels": fabric.kernels}
    paths = {key: str(Path(name).resolve()) for key, name in files.items() if name}
    return {
        "gpu_model": fabric.gpu_model,
        "family": fabric.family,
        "facts": facts,
    } | paths
