"""NetworkX node-link JSON, both ways and without loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim import files
from topologies.fabric import Fabric
from topologies.files.importers._graph import fabric_of, facts_of
from topologies.files.importers._text import Source, text_of


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
    import networkx as nx

    source = Source(path)
    try:
        data = files.json_of(text_of(path))
    except ValueError as error:
        source.fail("", f"no JSON ({error})", "node-link JSON")
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        source.fail("nodes", "no list", "node-link JSON with nodes and links")
    edges = "links" if "links" in data else "edges"
    given = data.get(edges)
    if not isinstance(given, list):
        source.fail("links", "no list", 'a list of edges under "links" or "edges"')
    ends = ("src", "dst") if given and "src" in given[0] else ("source", "target")
    _check(source, data["nodes"], given, ends)
    graph = nx.node_link_graph(data, source=ends[0], target=ends[1], edges=edges)
    return fabric_of(source, graph)


def _check(
    source: Source, nodes: list[Any], edges: list[Any], ends: tuple[str, str]
) -> None:
    for at, node in enumerate(nodes):
        if not isinstance(node, dict) or "id" not in node:
            source.fail(f"nodes[{at}]", 'no "id"', "an object with an id")
    names = {node["id"] for node in nodes}
    for at, edge in enumerate(edges):
        for end in ends:
            if not isinstance(edge, dict) or end not in edge:
                source.fail(
                    f"links[{at}]",
                    f'no "{end}"',
                    f"an object with {ends[0]} and {ends[1]}",
                )
            if edge[end] not in names:
                source.fail(f"links[{at}].{end}", repr(edge[end]), "the id of a node")


def write(fabric: Fabric, path: str | Path) -> list[str]:
    """Write the whole cluster; nothing is lost, so the list of losses is empty."""
    import networkx as nx

    data = nx.node_link_data(fabric.graph, source="src", target="dst", edges="links")
    data["graph"] = {**data["graph"], "facts": facts_of(fabric)}
    files.write_text(path, json.dumps(data, indent=1) + "\n")
    return []
