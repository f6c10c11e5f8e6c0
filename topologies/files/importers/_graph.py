"""From a NetworkX graph in prestep's attributes to a cluster, with errors that name the element."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.errors import InputError
from topologies.core.quantity import Quantity
from topologies.fabric import Fabric
from topologies.files.importers._text import Source

if TYPE_CHECKING:
    import networkx as nx

_NUMBERS = ("bandwidth", "raw", "latency", "count", "link")
_KNOWN_EDGE = {*_NUMBERS, "kind", "evidence", "latency_evidence", "source"}
_KNOWN_NODE = {"kind", "host"}


def fabric_of(source: Source, graph: nx.Graph[Any]) -> Fabric:
    """The checked cluster; attributes that it does not hold are noted as dropped.

    An undirected graph counts in both directions. Nodes need `kind`, edges `kind` and `bandwidth`.
    """
    import networkx as nx

    for node, data in graph.nodes.items():
        if not data.get("kind"):
            source.fail(
                f'node "{node}"',
                'no attribute "kind"',
                'a kind such as "gpu" or "nvswitch"',
            )
        _drop(source, "node", data, _KNOWN_NODE)
    both: nx.MultiDiGraph[Any] = (
        nx.MultiDiGraph(graph)
        if not graph.is_directed()
        else nx.MultiDiGraph(graph.copy())
    )
    for src, dst, data in both.edges(data=True):
        _check_edge(source, f"edge {src}-{dst}", data)
    facts = _facts(source, both.graph.pop("facts", {}))
    try:
        fabric = Fabric.from_graph(both)
    except InputError as error:
        raise source.checked(error) from None
    except (TypeError, ValueError) as error:
        source.fail("graph", str(error), "attributes of the types that prestep writes")
    name = str(both.graph.get("name") or source.title)
    return source.finish(fabric.with_facts(name, facts), name)


def _check_edge(source: Source, element: str, data: dict[str, Any]) -> None:
    if not data.get("kind"):
        source.fail(element, 'no attribute "kind"', 'a kind such as "nvlink" or "pcie"')
    if "bandwidth" not in data:
        source.fail(element, 'no attribute "bandwidth"', "bytes/s in this direction")
    source.positive(
        f"{element}.bandwidth", data["bandwidth"], "a finite number above 0, in bytes/s"
    )
    for key in ("raw", "count"):
        if key in data:
            source.positive(f"{element}.{key}", data[key])
    if "latency" not in data:
        source.assumed("latency", "edges without one have a latency of 0")
    _drop(source, "edge", data, _KNOWN_EDGE)


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
    except (AttributeError, TypeError, ValueError):
        source.fail("graph.facts", repr(given)[:60], "{key: [value, evidence, source]}")


def facts_of(fabric: Fabric) -> dict[str, list[Any]]:
    """The facts as JSON can hold them."""
    return {
        key: [known.value, known.evidence, known.source]
        for key, known in fabric.facts.items()
    }
