"""Compiles a graph of patterns into the columns of a cluster: what repeats is expanded with numpy.

A node with `copies` stands for so many nodes, and one with a `pattern` for hosts that are all like that graph. An edge
with a `spec` is a cable between all copies of its ends, or between those that its `pairs` name; docs/graphs.md has the
attributes. So a graph of a few hundred edges describes 100,000 GPUs, and no loop over their links is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prestep.sim.errors import InputError, did_you_mean
from prestep.topologies.core.links import TYPES, Ints, Links, Nodes
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric.fabric import Fabric

if TYPE_CHECKING:
    import networkx as nx

#: One row of links without its ends; equal ones are stored once.
TRAITS = tuple(key for key in Links.__dataclass_fields__ if key not in ("src", "dst"))


@dataclass
class Traits:
    """What rows of links are like: each distinct one once, and its number.

    The two directions of a cable have numbers that follow each other.
    """

    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {key: [] for key in TRAITS}
    )
    _cables: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> int:
        """Adds a row's traits and returns their number."""
        for key, column in self.columns.items():
            column.append(row[key])
        return len(self.columns["kind"]) - 1

    def of_cable(self, kind: str, spec: LinkSpec, count: int) -> int:
        """The number of a cable's first direction."""
        # The graph holds the specification, so that no other gets its identity.
        key = kind, id(spec), count
        if key not in self._cables:
            first, _ = (
                self.add(_traits(kind, way, count)) for way in (spec, spec.reverse)
            )
            self._cables[key] = first
        return self._cables[key]


def _traits(kind: str, spec: LinkSpec, count: int) -> dict[str, Any]:
    """`count` physical links in the direction of a specification."""
    return {
        "kind": kind,
        "count": count,
        "bandwidth": spec.bandwidth.value * count,
        "raw": spec.wire * count,
        "latency": spec.latency.value,
        "evidence": spec.bandwidth.evidence,
        "latency_evidence": spec.latency.evidence,
        "source": spec.bandwidth.source,
    }


def labels_of(node: str, data: Mapping[str, Any]) -> list[str]:
    """Names of the nodes, or of the hosts, that a node of a graph stands for."""
    if "copies" not in data:
        return [node]
    return [f"{node}{number}" for number in range(data["copies"])]


def prefixes_of(node: str, data: Mapping[str, Any]) -> list[str]:
    """What names of the nodes in each host begin with that a node of a graph stands for."""
    return [data.get("prefix", f"{host}/") for host in labels_of(node, data)]


@dataclass(frozen=True)
class _Span:
    """Where the nodes begin that a node of the graph stands for: `copies` of `size` nodes, by name within a copy."""

    start: int
    size: int
    copies: int
    inner: Mapping[str, int]

    @property
    def firsts(self) -> Ints:
        """Position of the first node of every copy."""
        firsts: Ints = self.start + self.size * np.arange(self.copies)
        return firsts


#: Rows that lie together: their place in the order, their ends, and numbers of their traits.
_Rows = tuple[float, Sequence[int] | Ints, Sequence[int] | Ints, Sequence[int] | Ints]


@dataclass
class Compiler:
    """Nodes and rows of one graph; `patterns` has those of the hosts in it, each compiled once, by identity."""

    where: str
    traits: Traits = field(default_factory=Traits)
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    patterns: dict[int, Compiler] = field(default_factory=dict)
    _spans: dict[str, _Span] = field(default_factory=dict)
    _rows: list[_Rows] = field(default_factory=list)

    def add_nodes(self, nodes: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Adds the nodes that those of a graph stand for, by name with their attributes."""
        for node, data in nodes:
            if "pattern" in data:
                self._add_hosts(node, data, self._part(data["pattern"]))
                continue
            labels = labels_of(node, data)
            self._spans[node] = _Span(len(self.names), 1, len(labels), {})
            self.names += labels
            self.kinds += [data.get("kind", "")] * len(labels)
            self.hosts += [data.get("host", "")] * len(labels)

    def _add_hosts(self, node: str, data: Mapping[str, Any], pattern: Compiler) -> None:
        """Adds all copies of a host: its nodes under the prefix of each copy, and its rows."""
        labels, start = labels_of(node, data), len(self.names)
        inner = {name: at for at, name in enumerate(pattern.names)}
        prefixes = prefixes_of(node, data)
        self.names += [prefix + name for prefix in prefixes for name in pattern.names]
        self.kinds += pattern.kinds * len(labels)
        self.hosts += [host for host in labels for _ in inner]
        span = self._spans[node] = _Span(start, len(inner), len(labels), inner)
        src, dst, traits = pattern.columns()
        first = span.firsts[:, None]
        ends = (first + src).ravel(), (first + dst).ravel()
        self._rows.append((data.get("link", -1), *ends, np.tile(traits, len(labels))))

    def _part(self, pattern: nx.Graph[Any]) -> Compiler:
        """The host that a pattern describes."""
        if id(pattern) not in self.patterns:
            part = Compiler(self.where, self.traits)
            part.add_nodes(pattern.nodes.items())
            part.add_cables(pattern)
            self.patterns[id(pattern)] = part
        return self.patterns[id(pattern)]

    def add_cables(self, graph: nx.Graph[Any]) -> None:
        """The cables that the edges with a `spec` stand for: a row in each direction."""
        cables = (edge for edge in graph.edges(data=True) if "spec" in edge[2])
        for a, b, data in cables:
            first = self.traits.of_cable(
                data["kind"], data["spec"], data.get("count", 1)
            )
            src, dst = self._ends(str(a), str(b), data)
            # Both directions of a cable lie together.
            rows = [np.stack(pair, axis=1).ravel() for pair in ((src, dst), (dst, src))]
            traits = np.tile([first, first + 1], len(src))
            self._rows.append((data.get("link", math.inf), *rows, traits))

    def _ends(self, a: str, b: str, data: Mapping[str, Any]) -> tuple[Ints, Ints]:
        """Positions of the nodes that the cables of an edge join."""
        edge, spans = f"edge {a}-{b}", (self._spans[a], self._spans[b])
        tails, heads = (
            self._ports(edge, key, span.inner, data.get(key, ()))
            for key, span in zip(("tail_ports", "head_ports"), spans, strict=True)
        )
        if "pairs" not in data:
            src, dst = (
                (span.firsts[:, None] + ports).ravel()
                for span, ports in zip(spans, (tails, heads), strict=True)
            )
            return np.repeat(src, len(dst)), np.tile(dst, len(src))
        first, last = self._firsts(f"{edge}.pairs", spans, data["pairs"])
        # Of every pair each tail with each head.
        src = first[:, None] + np.repeat(tails, len(heads))
        dst = last[:, None] + np.tile(heads, len(tails))
        return src.ravel(), dst.ravel()

    def _firsts(
        self, key: str, spans: tuple[_Span, _Span], numbers: Sequence[tuple[int, int]]
    ) -> tuple[Ints, Ints]:
        """Positions of the first node of both copies of each pair."""
        pairs = np.array(numbers, dtype=np.int64).reshape(-1, 2)
        copies = [span.copies for span in spans]
        if ((pairs < 0) | (pairs >= copies)).any():
            found = f"{pairs.max(axis=0).tolist()} among them"
            expected = f"numbers below {copies}: copies of both ends"
            raise InputError.of(self.where, key, found, expected)
        return spans[0].firsts[pairs[:, 0]], spans[1].firsts[pairs[:, 1]]

    def _ports(
        self, edge: str, key: str, inner: Mapping[str, int], ports: Sequence[str]
    ) -> Ints:
        """Places in a host of the nodes at which cables begin or end; 0 for a node that is no host."""
        unknown = [str(port) for port in ports if port not in inner]
        if bool(inner) != bool(ports) or unknown:
            found = f'"{unknown[0]}"' if unknown else f"{len(ports)} names"
            expected = "names of nodes in the host" if inner else "none: it is no host"
            hint = did_you_mean(unknown[0], inner) if unknown else ""
            raise InputError.of(self.where, f"{edge}.{key}", found, expected, hint)
        return np.array([inner[port] for port in ports] or [0], dtype=np.int64)

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of links by the names of their ends, with their traits and place in the order."""
        index = {name: at for at, name in enumerate(self.names)}
        for row in rows:
            ends = [index[row["src"]]], [index[row["dst"]]]
            self._rows.append((row["link"], *ends, [self.traits.add(row)]))

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Both ends of all rows, and the numbers of their traits, in order."""
        rows = sorted(self._rows, key=lambda some: some[0])
        if not rows:
            return (np.empty(0, dtype=np.int64),) * 3
        _, *columns = zip(*rows, strict=True)
        src, dst, traits = (
            np.concatenate(column).astype(np.int64) for column in columns
        )
        return src, dst, traits

    def finish(self) -> tuple[Nodes, Links]:
        """All nodes and links as columns."""
        nodes = Nodes(tuple(self.names), tuple(self.kinds), tuple(self.hosts))
        src, dst, traits = self.columns()
        # All rows of a node share one text.
        names = np.array(self.names, dtype=object)
        columns = {
            key: np.array(values, dtype=TYPES.get(key, np.str_))[traits]
            for key, values in self.traits.columns.items()
        }
        links = Links(src=names[src], dst=names[dst], **columns)
        links.remember(nodes, src, dst)
        # The kinds of millions of links follow from those of their few traits.
        of_traits = self.traits.columns["kind"]
        first = np.full(len(of_traits), len(traits))
        first[traits[::-1]] = np.arange(len(traits))[::-1]
        order = [at for at in np.argsort(first).tolist() if first[at] < len(traits)]
        kinds = list(dict.fromkeys(of_traits[trait] for trait in order))
        number = np.zeros(len(of_traits), dtype=np.int64)
        number[order] = [kinds.index(of_traits[trait]) for trait in order]
        vars(links).update(kinds=tuple(kinds), kind_numbers=number[traits])
        return nodes, links


def compile_graph(graph: nx.MultiDiGraph[str]) -> Fabric:
    """Returns the checked cluster that a family's graph describes.

    Its edges all have a `spec`; `Fabric.from_graph` reads any graph, and refuses what it does not understand.

    Raises
    ------
    InputError
        With everything that is wrong with the cluster.
    """
    stated = graph.graph
    compiler = Compiler(stated["name"])
    compiler.add_nodes(graph.nodes.items())
    compiler.add_cables(graph)
    return Fabric(
        stated["name"], *compiler.finish(), stated["gpu_model"], stated["family"]
    )
