"""A cluster as a NetworkX graph, and a graph as a cluster; docs/graphs.md lists the attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from prestep.sim.errors import InputError
from prestep.sim.units import parse_bandwidth, parse_duration
from prestep.topologies.core.checks import check
from prestep.topologies.core.facts import FILES, KINDS
from prestep.topologies.core.kinds import LINK_KINDS, NODE_KINDS
from prestep.topologies.core.links import Links, Nodes
from prestep.topologies.core.quantity import EDITED, GRADES, LinkSpec, number_of, shown
from prestep.topologies.fabric.attributes import (
    GPU_ATTRIBUTES,
    attributes_of,
    fields_of,
    gpu_attributes,
    gpu_changes,
)
from prestep.topologies.fabric.compile import Compiler, Traits, labels_of, prefixes_of
from prestep.topologies.fabric.fabric import Fabric
from prestep.topologies.fabric.reading import Reading

#: Attributes that are read, of each element.
GRAPH = ("name", "gpu_model", "family", "facts", "links", *FILES)
NODE = ("kind", "host", *GPU_ATTRIBUTES)
#: Of nodes that stand for several, and of edges that are cables: see `prestep.topologies.fabric.compile`.
REPEATED = ("pattern", "copies", "prefix", "link")
CABLE = ("kind", "spec", "count", "link", "tail_ports", "head_ports", "pairs")
_NUMBERS = ("bandwidth", "raw", "latency")
_GRADES = ("evidence", "latency_evidence")
EDGE = ("kind", *_NUMBERS, "count", *_GRADES, "provenance", "source", "link", "stated")
#: Of what NetworkX itself writes into the attributes of a graph.
_OF_NETWORKX = ("node_default", "edge_default")
_MOST_COUNT, _MOST_LINK, _MOST_COPIES = 2**20, 2**26, 2**18


def to_graph(fabric: Fabric) -> nx.MultiDiGraph[str]:
    """Returns a cluster as a graph to edit, and to give to `prestep.simulate(..., cluster=graph)`.

    It holds all that a prediction follows from. A routing policy and the sockets of processes are a scenario's.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> graph = to_graph(load_cluster("dgx-h100"))
    >>> graph.nodes["gpu0"]["kind"], graph["gpu0"]["nvswitch0"][0]["count"]
    ('gpu', 5)
    """
    attributes = attributes_of(fabric)
    # As a text: GraphML has no tables.
    attributes["facts"] = json.dumps(attributes["facts"])
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=fabric.name, **attributes)
    nodes, changed = fabric.nodes, gpu_attributes(fabric)
    for name, kind, host in zip(nodes.names, nodes.kinds, nodes.hosts, strict=True):
        graph.add_node(name, kind=kind, host=host, **changed.get(name, {}))
    columns = {
        key: getattr(fabric.links, key).tolist() for key in Links.__dataclass_fields__
    }
    for row in range(len(fabric.links)):
        edge = {key: column[row] for key, column in columns.items()}
        # NetworkX's JSON has the ends of edges under "source" and "target".
        edge["provenance"] = edge.pop("source")
        ends = edge.pop("src"), edge.pop("dst")
        graph.add_edge(*ends, link=row, stated=_stated(edge), **edge)
    return graph


def from_graph(
    graph: nx.Graph[Any],
    name: str = "",
    gpu_model: str = "",
    where: str = "",
    folder: Path = Path(),
) -> Fabric:
    """Returns the checked cluster that a graph describes; an undirected one counts in both directions.

    Parameters
    ----------
    graph
        Nodes need `kind`, edges `kind` and `bandwidth`; docs/graphs.md has the other attributes. The order of GPUs is
        that of ranks.
    name, gpu_model
        Instead of the graph's attributes.
    where
        The file that it comes from, for errors and for the name of a graph without one.
    folder
        What files that it names are relative to.

    Raises
    ------
    InputError
        With everything that is wrong, or not understood.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> dgx = load_cluster("dgx-h100")
    >>> from_graph(to_graph(dgx)).facts == dgx.facts
    True
    """
    if not isinstance(graph, nx.Graph):
        found = f"a {type(graph).__name__}"
        expected = "a NetworkX graph, or a cluster by name or file"
        raise InputError.of(where or "cluster", "", found, expected)
    stated = {key: v for key, v in graph.graph.items() if key not in _OF_NETWORKX}
    title = name or _title(graph, where)
    reading = Reading(where or title)
    reading.known("graph", [("", stated)], (*GRAPH, *KINDS))
    model, family = (reading.text("graph", stated, key) for key in GRAPH[1:3])
    nodes, links = _columns(reading, graph)
    fields = fields_of(stated, reading.where, folder, reading.mistakes)
    mistakes = reading.mistakes
    fields["gpu_changes"] = gpu_changes(_gpus(graph), reading.where, mistakes)
    mistakes += check(reading.where, nodes, links)
    InputError.check(mistakes)
    fields["facts"] |= reading.facts()
    return Fabric(title, nodes, links, gpu_model or model, family, **fields)


def _title(graph: nx.Graph[Any], where: str) -> str:
    """The name that a graph states, or that of its file."""
    stated = str(graph.graph.get("name") or "")
    return stated or Path(where).name.partition(".")[0] or "graph"


def _columns(reading: Reading, graph: nx.Graph[Any]) -> tuple[Nodes, Links]:
    """All nodes and links of a graph; where they cannot be made, its other mistakes are told too."""
    try:
        return _compiler(reading, graph, Traits()).finish()
    except InputError as error:
        raise InputError([*reading.mistakes, *error.mistakes]) from None


def _gpus(graph: nx.Graph[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All nodes by name with what they say of themselves as GPUs, those of repeated hosts too."""
    for node, data in graph.nodes.items():
        if isinstance(data.get("pattern"), nx.Graph):
            for prefix in prefixes_of(str(node), data):
                yield from (
                    (prefix + name, one) for name, one in _gpus(data["pattern"])
                )
        else:
            yield from ((label, data) for label in labels_of(str(node), data))


def _compiler(
    reading: Reading, graph: nx.Graph[Any], traits: Traits, is_host: bool = False
) -> Compiler:
    """A graph that was read, ready to be compiled; its patterns too, which are hosts."""
    compiler = Compiler(reading.where, traits)
    nodes = list(_nodes(reading, graph, is_host))
    rows = _rows(reading, graph, dict(nodes))
    for _, data in nodes:
        pattern = data.get("pattern")
        if pattern is not None and id(pattern) not in compiler.patterns:
            compiler.patterns[id(pattern)] = _compiler(reading, pattern, traits, True)
    # Only what is sound can be repeated; of single nodes and edges all else is checked too.
    repeats = any(key in data for _, data in nodes for key in REPEATED)
    if reading.mistakes and (is_host or repeats):
        raise InputError(reading.mistakes)
    compiler.add_nodes(nodes)
    compiler.add_rows(rows)
    compiler.add_cables(graph)
    return compiler


def _nodes(
    reading: Reading, graph: nx.Graph[Any], is_host: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A graph's nodes by name, with the attributes that say what they stand for."""
    elements = [(f'node "{node}"', data) for node, data in graph.nodes.items()]
    reading.known("node", elements, (*NODE, *REPEATED))
    for node, (element, data) in zip(graph.nodes, elements, strict=True):
        if not isinstance(node, str | int | tuple) or not str(node):
            expected = "a name: a text, a number or a tuple"
            reading.wrong(element, "", shown(node), expected)
        attributes = _repetition(reading, element, data)
        if "pattern" in data:
            attributes |= _pattern(reading, element, data["pattern"], is_host)
        else:
            attributes |= _single(reading, element, data)
        yield str(node), attributes


def _repetition(
    reading: Reading, element: str, data: Mapping[str, Any]
) -> dict[str, Any]:
    """How many nodes a node stands for, their place in the order, and what their names begin with."""
    attributes: dict[str, Any] = {
        key: reading.whole(element, data, key, 0, (0, most))
        for key, most in (("copies", _MOST_COPIES), ("link", _MOST_LINK))
        if key in data
    }
    if "prefix" in data:
        attributes["prefix"] = reading.text(element, data, "prefix")
    return attributes


def _pattern(
    reading: Reading, element: str, pattern: object, is_host: bool
) -> dict[str, Any]:
    """The graph of the host that a node stands for; hosts have no hosts in them."""
    if isinstance(pattern, nx.Graph) and not is_host:
        return {"pattern": pattern}
    found = "a host in a host" if is_host else shown(pattern)
    reading.wrong(element, "pattern", found, "a NetworkX graph of one host")
    return {}


def _single(reading: Reading, element: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and host of a node that is no host."""
    kind = reading.kind(element, data, NODE_KINDS, '"gpu" or "nvswitch"')
    changes = [key for key in GPU_ATTRIBUTES if key in data]
    if changes and kind != "gpu":
        found = f"an attribute of a {kind or 'node'}"
        reading.wrong(element, changes[0], found, "GPUs: only they have it")
    return {"kind": kind, "host": reading.text(element, data, "host")}


def _rows(
    reading: Reading, graph: nx.Graph[Any], nodes: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Edges that say their rates by their attribute `link`; those without it come after the others, in order."""
    _check_cables(reading, graph)
    plain = [
        (f"edge {src}-{dst}", (str(src), str(dst)), data)
        for src, dst, data in graph.edges(data=True)
        if "spec" not in data
    ]
    reading.known("edge", [(element, data) for element, _, data in plain], EDGE)
    repeated = {
        name for name, data in nodes.items() if any(key in data for key in REPEATED)
    }
    one_way = graph.is_directed()
    rows = [
        {"src": src, "dst": dst, **row}
        for element, ends, data in plain
        if _are_single(reading, element, repeated, ends)
        for row in [_row(reading, element, data)]
        for src, dst in dict.fromkeys((ends, ends if one_way else ends[::-1]))
    ]
    rows.sort(key=lambda row: row["link"])
    return list(_merged(reading, rows))


def _are_single(
    reading: Reading, element: str, repeated: Set[str], ends: tuple[str, str]
) -> bool:
    """Whether neither end stands for several nodes: those only a cable can join."""
    if repeated.isdisjoint(ends):
        return True
    found = "an end that stands for several nodes"
    reading.wrong(element, "", found, "a cable: an edge with a spec")
    return False


def _check_cables(reading: Reading, graph: nx.Graph[Any]) -> None:
    """Refuses what cables cannot have."""
    edges = graph.edges(data=True)
    cables = [(f"edge {a}-{b}", data) for a, b, data in edges if "spec" in data]
    reading.known("edge", cables, CABLE)
    for element, data in cables:
        _check_cable(reading, element, data)


def _check_cable(reading: Reading, element: str, data: Mapping[str, Any]) -> None:
    """Refuses what a cable cannot have; whether copies and nodes of hosts exist is the compiler's to say."""
    reading.kind(element, data, LINK_KINDS, '"nvlink" or "pcie"')
    if not isinstance(data["spec"], LinkSpec):
        reading.wrong(element, "spec", shown(data["spec"]), "a LinkSpec")
    for key, least, most in (("count", 1, _MOST_COUNT), ("link", 0, _MOST_LINK)):
        value = data.get(key, least)
        if type(value) is not int or not least <= value <= most:
            expected = f"a whole number of at least {least}"
            reading.wrong(element, key, shown(value), expected)
    for key in ("tail_ports", "head_ports"):
        ports = data.get(key, ())
        if not isinstance(ports, list | tuple):
            reading.wrong(element, key, shown(ports), "a list of names of nodes")
    try:
        np.array(data.get("pairs", []), dtype=np.int64).reshape(-1, 2)
    except (OverflowError, TypeError, ValueError):
        expected = "pairs of numbers of copies: [(0, 0), (1, 0)]"
        reading.wrong(element, "pairs", shown(data["pairs"]), expected)


def _row(reading: Reading, element: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """An edge's attributes, with what it does not say filled in."""
    if "bandwidth" not in data:
        expected = "bytes/s in this direction"
        reading.wrong(element, "", 'no attribute "bandwidth"', expected)
    if "latency" not in data:
        why = "edges without one have a latency of 0"
        reading.notes["assumed: latency", why] += 1
    numbers = {"bandwidth": 1e9, "latency": 0.0}
    for key in _NUMBERS:
        default = numbers.get(key, numbers["bandwidth"])
        parse = parse_duration if key == "latency" else parse_bandwidth
        numbers[key] = (
            reading.quantity(element, key, data[key], parse, default)
            if key in data
            else default
        )
    row = {
        "kind": reading.kind(element, data, LINK_KINDS, '"nvlink" or "pcie"'),
        "count": reading.whole(element, data, "count", 1, (1, _MOST_COUNT)),
        "link": reading.whole(element, data, "link", math.inf, (0, _MOST_LINK)),
        "source": reading.text(element, data, "provenance")
        or reading.text(element, data, "source"),
        **numbers,
    }
    for key in _GRADES:
        row[key] = reading.text(element, data, key) or "guess"
    return _edited(reading, element, row, data.get("stated"))


def _stated(edge: Mapping[str, Any]) -> str:
    """The numbers of an edge with their grades, by which an edit of one is seen later."""
    numbers = [repr(float(edge[key])) for key in _NUMBERS]
    return " ".join([*numbers, *(str(edge[key]) for key in _GRADES)])


def _edited(
    reading: Reading, element: str, row: dict[str, Any], stated: object
) -> dict[str, Any]:
    """The row with grades of what was edited since `to_graph`: a guess, as after `--set`, unless it says otherwise.

    The wire follows the payload: headers keep their part.
    """
    if not stated:
        return row
    words = stated.split() if isinstance(stated, str) else []
    before = [number_of(word) for word in words[:3]]
    if len(words) != 5 or not all(map(math.isfinite, before)) or before[0] <= 0:
        expected = "what to_graph wrote, or nothing: delete it"
        reading.wrong(element, "stated", shown(stated), expected)
        return row
    bandwidth, raw, latency = before
    changes: dict[str, Any] = {}
    if row["bandwidth"] != bandwidth:
        if row["raw"] == raw:
            changes["raw"] = raw * (row["bandwidth"] / bandwidth)
        if row["evidence"] == words[3]:
            changes |= {"evidence": "guess", "source": EDITED}
    if row["latency"] != latency and row["latency_evidence"] == words[4]:
        changes["latency_evidence"] = "guess"
    return row | changes


def _merged(reading: Reading, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows in which parallel edges are one with their count; they have to be alike."""
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        together.setdefault((row["src"], row["dst"]), []).append(row)
    for (src, dst), group in together.items():
        if len(set(map(_one_of, group))) > 1:
            found = f"{len(group)} edges that differ in kind, rate or latency"
            expected = "parallel edges that are alike, or one"
            reading.wrong(f"edge {src}-{dst}", "", found, expected)
        first = group[0]
        if len(group) > 1:
            sums = {key: sum(row[key] for row in group) for key in ("count", "bandwidth", "raw")}  # fmt: skip
            worst = {
                key: max((row[key] for row in group), key=_grade) for key in _GRADES
            }
            first = first | sums | worst
        yield first


def _one_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What one physical link of a row is like."""
    rates = (f"{row[key] / row['count']:.9g}" for key in ("bandwidth", "raw"))
    return row["kind"], row["latency"], *rates


def _grade(evidence: str) -> int:
    return GRADES.index(evidence) if evidence in GRADES else len(GRADES)
