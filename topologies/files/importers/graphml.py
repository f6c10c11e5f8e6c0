"""GraphML, as NetworkX, Gephi and yEd have it, both ways and without loss."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import ParseError

import networkx as nx

from prestep.sim import files
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.graph import from_graph, to_graph
from prestep.topologies.files.importers._text import Source, text_of


def sniff(text: str) -> bool:
    """An XML file whose root is `graphml`."""
    return "<graphml" in text[:2000]


def read(path: str | Path) -> Fabric:
    """The cluster in a GraphML file whose nodes and edges have prestep's attributes (`kind`, `bandwidth`, ...).

    Raises
    ------
    InputError
        If it is no GraphML, or a node or an edge is wrong; the element is named.
    """
    source = Source(path)
    try:
        graph = nx.parse_graphml(text_of(path), force_multigraph=True)
    except (ParseError, nx.NetworkXError, KeyError, ValueError) as error:
        source.fail("", f"no GraphML ({error})", "a GraphML file")
    return from_graph(graph, where=str(path), folder=source.path.parent)


def write(fabric: Fabric, path: str | Path) -> list[str]:
    """Write the whole cluster; nothing is lost, so the list of losses is empty."""
    with files.replacing(path) as beside:
        nx.write_graphml(to_graph(fabric), str(beside))
    return []
