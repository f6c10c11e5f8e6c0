"""A cluster folded by symmetry: nodes that look alike from where they stand are one, with a count.

Nodes get a colour by kind, and then, round after round, by the colours that their links lead to and by the links'
numbers (`prestep.topologies.core.colours`). Equal colours then mean equal surroundings. A cluster with many different
surroundings (one slow link) is folded more coarsely: after fewer rounds, at last by kind alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from prestep.topologies.core.colours import rounds
from prestep.topologies.core.links import Ints, numbered
from prestep.topologies.fabric import Fabric

ROUNDS = 4
MOST = 16  # classes that a picture can hold


@dataclass(frozen=True)
class Class:
    """Nodes that are alike: `count` of a `kind`; `per_host` in each of `hosts` hosts (0: outside hosts)."""

    kind: str
    count: int
    hosts: int
    example: str

    @property
    def per_host(self) -> float:
        return self.count / self.hosts if self.hosts else 0.0


@dataclass(frozen=True)
class Edge:
    """Links between two classes.

    Attributes
    ----------
    ends : tuple of int
        Classes; the same one twice for links among its nodes.
    kind : str
    cables : int
        Physical links, all of them.
    low, high : float
        Least and most bytes/s of one physical link and direction, payload.
    """

    ends: tuple[int, int]
    kind: str
    cables: int
    low: float
    high: float


@dataclass(frozen=True)
class Folded:
    """The quotient of a cluster: classes of nodes, and the links between them."""

    classes: tuple[Class, ...]
    edges: tuple[Edge, ...]


def fold(fabric: Fabric, most: int = MOST) -> Folded:
    """The finest folding with at most so many classes; by kind where even that has more."""
    src, dst = fabric.ends
    colour = class_of(fabric, most)
    return Folded(_classes(fabric, colour), _edges(fabric, colour[src], colour[dst]))


def class_of(fabric: Fabric, most: int = MOST) -> Ints:
    """The class of every node, as an index into `Folded.classes` of `fold` with the same `most`."""
    kept: list[Ints] = fabric.memory.setdefault("colours", [])
    if not kept:
        src, dst = fabric.ends
        finer = rounds(_kinds(fabric), dst, src, _link_labels(fabric))
        kept += islice(finer, ROUNDS + 1)
    return next((c for c in reversed(kept) if c.max() < most), kept[0])


def _kinds(fabric: Fabric) -> Ints:
    """A number for every node by its kind, and by whether it is in a host."""
    nodes = fabric.nodes
    pairs = zip(nodes.kinds, nodes.hosts, strict=True)
    return numbered(np.array([f"{kind}/{bool(host)}" for kind, host in pairs]))


def _link_labels(fabric: Fabric) -> Ints:
    """A number for every link by its kind, count and bandwidth."""
    links = fabric.links
    label = numbered(links.kind)
    for column in (links.count, np.round(links.bandwidth, -3)):
        number = numbered(column)
        label = numbered(label * (int(number.max(initial=0)) + 1) + number)
    return label


def _classes(fabric: Fabric, colour: Ints) -> tuple[Class, ...]:
    classes = []
    for number in range(int(colour.max()) + 1):
        members = np.flatnonzero(colour == number).tolist()
        hosts = {fabric.nodes.hosts[at] for at in members} - {""}
        first = members[0]
        classes.append(
            Class(
                fabric.nodes.kinds[first],
                len(members),
                len(hosts),
                fabric.nodes.names[first],
            )
        )
    return tuple(classes)


def _edges(fabric: Fabric, src: Ints, dst: Ints) -> tuple[Edge, ...]:
    links = fabric.links
    kind_number = numbered(links.kind)
    keys = np.stack([np.minimum(src, dst), np.maximum(src, dst), kind_number], axis=1)
    pairs, where = np.unique(keys, axis=0, return_inverse=True)
    where = where.reshape(-1)
    one = links.bandwidth / links.count
    edges = []
    for number, (a, b, _) in enumerate(pairs.tolist()):
        rows = np.flatnonzero(where == number)
        cables = int(links.count[rows].sum()) // 2
        edges.append(
            Edge(
                (a, b),
                str(links.kind[rows[0]]),
                cables,
                float(one[rows].min()),
                float(one[rows].max()),
            )
        )
    return tuple(edges)
