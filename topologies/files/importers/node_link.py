"""NetworkX node-link JSON, both ways and without loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx

from prestep.sim import files
from prestep.topologies.core.quantity import shown
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.attributes import attributes_of
from prestep.topologies.fabric.graph import from_graph, to_graph
from prestep.topologies.files.importers._text import Source, text_of


def sniff(text: str) -> bool:
    """A JSON object with `nodes` that are objects with an `id`."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        data = files.json_of(text)
    except ValueError:
        return False
    nodes = data.get("nodes") if isinstance(data, dict) else None
    return (
        isinstance(nodes, list)
        and bool(nodes)
        and isinstance(nodes[0], dict)
        and "id" in nodes[0]
    )


def read(path: str | Path) -> Fabric:
    """The cluster in a file that `write`, `prestep topology export` or NetworkX wrote.

    Edges lie under "links" or "edges", with their ends under "src" and "dst" or "source" and "target"; bandwidths are
    in bytes/s, latencies in s.

    Raises
    ------
    InputError
        If it is no node-link data, or a node or an edge is wrong; the element is named.
    """
    source = Source(path)
    try:
        data = files.json_of(text_of(path))
    except ValueError as error:
        source.fail("", f"no JSON ({error})", "node-link JSON")
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        source.fail("nodes", "no list", "node-link JSON with nodes and links")
    edges = data.get("links" if "links" in data else "edges")
    if not isinstance(edges, list):
        source.fail("links", "no list", 'a list of edges under "links" or "edges"')
    attributes = source.mapping("graph", data.get("graph", {}), "a mapping")
    directed = bool(data.get("directed", False))
    graph = nx.MultiDiGraph(**attributes) if directed else nx.MultiGraph(**attributes)
    _add_nodes(source, graph, data["nodes"])
    _add_edges(source, graph, edges)
    return from_graph(graph, where=str(path), folder=source.path.parent)


def _add_nodes(source: Source, graph: nx.Graph[str], nodes: list[Any]) -> None:
    """Nodes by their names: a number is its digits, and no two have the same."""
    for at, node in enumerate(nodes):
        where = f"nodes[{at}]"
        if not isinstance(node, dict) or "id" not in node:
            source.fail(where, 'no "id"', "an object with an id")
        name = source.text(f"{where}.id", node["id"], "a text or a whole number")
        if name in graph:
            source.fail(f"{where}.id", f'a second "{name}"', "every node once")
        graph.add_node(name)
        graph.nodes[name].update(_others(source, where, node, {"id"}))


def _add_edges(source: Source, graph: nx.Graph[str], edges: list[Any]) -> None:
    """Edges between nodes of the file; `key` is NetworkX's number among those with the same ends."""
    first = edges[0] if edges and isinstance(edges[0], dict) else {}
    ends = ("src", "dst") if "src" in first else ("source", "target")
    for at, edge in enumerate(edges):
        where = f"links[{at}]"
        for end in ends:
            if not isinstance(edge, dict) or end not in edge:
                expected = f"an object with {ends[0]} and {ends[1]}"
                source.fail(where, f'no "{end}"', expected)
            if not _is_node(graph, edge[end]):
                source.fail(f"{where}.{end}", shown(edge[end]), "the id of a node")
        a, b = (str(edge[end]) for end in ends)
        key = graph.add_edge(a, b)
        graph[a][b][key].update(_others(source, where, edge, {*ends, "key"}))


def _is_node(graph: nx.Graph[str], name: object) -> bool:
    """Whether a text or a whole number names a node."""
    named = isinstance(name, str | int) and not isinstance(name, bool)
    return named and str(name) in graph


def _others(
    source: Source, where: str, entry: dict[str, Any], known: set[str]
) -> dict[str, Any]:
    """The attributes of a node or an edge."""
    table = source.mapping(where, entry, "an object whose keys are texts")
    return {key: value for key, value in table.items() if key not in known}


def write(fabric: Fabric, path: str | Path) -> list[str]:
    """Write the whole cluster; nothing is lost, so the list of losses is empty."""
    graph = to_graph(fabric)
    data = nx.node_link_data(graph, source="src", target="dst", edges="links")
    # JSON has tables: its facts are one.
    data["graph"] |= attributes_of(fabric)
    files.write_text(path, json.dumps(data, indent=1) + "\n")
    return []
