"""Everybody to everybody: bytes on links of a complete exchange, counted by classes of nodes.

Nodes in the same place of like hosts under the same switches use the same ports and the same paths between switches.
So one pair stands for all pairs of two classes, and what is left is to count: how many receivers there are that are
not in the sender's own host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prestep.topologies.core.links import Floats, Ints, distinct, groups
from prestep.topologies.routes.batch import Batch
from prestep.topologies.routes.pieces import Piece
from prestep.topologies.routes.ports import Ports
from prestep.topologies.routes.router import MAX_PATHS
from prestep.topologies.routes.stubs import Pattern

_CHUNK = 1 << 20  # pairs at a time where classes do not help


def exchange(batch: Batch, senders: Ints, receivers: Ints, amount: float) -> Floats:
    """Bytes on every row when each of `senders` sends `amount` bytes to each of `receivers` other than itself.

    Both are positions of nodes, each at most once. The sum of `Batch.loads` over all pairs.
    """
    stubs = batch.stubs
    if (stubs.pattern[senders] < 0).any() or (stubs.pattern[receivers] < 0).any():
        return _pair_by_pair(batch, senders, receivers, amount)
    total = _near(batch, senders, receivers, amount)
    for _, some in groups(stubs.pattern[senders]):
        for _, others in groups(stubs.pattern[receivers]):
            total += _far(batch, senders[some], receivers[others], amount)
    return total


def _near(batch: Batch, senders: Ints, receivers: Ints, amount: float) -> Floats:
    """The part inside hosts."""
    first, second = _host(batch, senders), _host(batch, receivers)
    by_host = dict(groups(second))
    pairs = [
        (
            np.repeat(senders[some], len(by_host[host])),
            np.tile(receivers[by_host[host]], len(some)),
        )
        for host, some in groups(first)
        if host in by_host
    ]
    if not pairs:
        return np.zeros(batch.size)
    src, dst = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return batch.loads(src, dst, np.where(src == dst, 0.0, amount))


def _host(batch: Batch, nodes: Ints) -> Ints:
    """A number for the host of each node."""
    return (batch.stubs.pattern[nodes] << 32) + batch.stubs.member[nodes]


def _far(batch: Batch, senders: Ints, receivers: Ints, amount: float) -> Floats:
    """The part between hosts, of nodes of one pattern each."""
    sides = _sides(batch, senders, receivers)
    ways = _equal_ports(batch, sides)
    if ways is None:
        return _pair_by_pair(batch, senders, receivers, amount, between=True)
    pairs = _pairs_by_class(sides[0])
    total = np.zeros(batch.size)
    for way in ways:
        way.add(batch, pairs, total)
    return total * (amount / len(ways))


def _sides(batch: Batch, senders: Ints, receivers: Ints) -> tuple[_Side, _Side]:
    """Both sides of an exchange by class."""
    first, second = _classes(batch, senders), _classes(batch, receivers)
    away = _strangers(batch, senders, receivers, second)
    home = _strangers(batch, receivers, senders, first)
    return _Side(senders, first, away, True), _Side(receivers, second, home, False)


def _pairs_by_class(senders: _Side) -> Floats:
    """How many pairs of different hosts there are of every two classes, one after the other."""
    count = len(senders.members)
    columns = [
        np.bincount(senders.labels, column, count) for column in senders.strangers.T
    ]
    pairs: Floats = np.stack(columns, axis=1).astype(np.float64).ravel()
    return pairs


@dataclass(frozen=True, eq=False)
class _Side:
    """Senders, or receivers: the class of each, and how many on the other side are not in its host, by class."""

    nodes: Ints
    labels: Ints
    strangers: Floats
    out: bool

    @property
    def members(self) -> Ints:
        """One node of each class."""
        _, first = np.unique(self.labels, return_index=True)
        return self.nodes[first]


@dataclass(frozen=True, eq=False)
class _Way:
    """How every two classes go by one of their best ports.

    Attributes
    ----------
    first, last : array
        The switches behind the ports.
    width, count : array
        Physical links of the narrowest part in the hosts, and paths between the switches.
    pieces : list of (Piece, array)
        Links in hosts, and how many pairs use each.
    """

    first: Ints
    last: Ints
    width: Ints
    count: Ints
    pieces: list[tuple[Piece, Floats]]

    def like(self, other: _Way) -> bool:
        """Whether it carries as much as another port."""
        equal = np.array_equal
        return equal(self.count, other.count) and equal(self.width, other.width)

    def add(self, batch: Batch, pairs: Floats, total: Floats) -> None:
        """Adds to `total` one byte for each of `pairs[i]` pairs of the i-th two classes."""
        for piece, weight in self.pieces:
            each = np.repeat(weight, piece.rows.shape[1])
            total += np.bincount(piece.rows.ravel(), weights=each, minlength=batch.size)
        for at in np.flatnonzero(pairs).tolist():
            first, last = int(self.first[at]), int(self.last[at])
            rows, share = batch.net.paths(first, last, 0, int(self.width[at]))
            total[rows] += share * pairs[at]


def _equal_ports(batch: Batch, sides: tuple[_Side, _Side]) -> list[_Way] | None:
    """The ways by each of the best ports; None where classes do not show that all carry equal shares."""
    src, dst = _one_of_each(*sides)
    hosts = _pattern(batch, src), _pattern(batch, dst)
    ports = batch.host_ports.ports(*hosts, src, dst)
    best = int(ports.best[0])
    if not ports.single.all() or (ports.best != best).any():
        return None
    ways: list[_Way] = []
    for nth in range(best):
        ports = batch.host_ports.ports(*hosts, src, dst, nth) if nth else ports
        way = _way(batch, sides, ports, *batch.switches(hosts, src, dst, ports))
        ways.append(way)
        # Of more paths than are kept, which ones are depends on the pair.
        beyond = way.count.max(initial=0) * best > MAX_PATHS
        if beyond or not ports.single.all() or not way.like(ways[0]):
            return None
    return ways


def _one_of_each(senders: _Side, receivers: _Side) -> tuple[Ints, Ints]:
    """One pair of nodes for every two classes."""
    first, second = senders.members, receivers.members
    return np.repeat(first, len(second)), np.tile(second, len(first))


def _pattern(batch: Batch, nodes: Ints) -> Pattern:
    """The pattern that the hosts of some nodes have in common."""
    patterns = batch.stubs.patterns
    return patterns[int(batch.stubs.pattern[nodes[0]])]


def _way(
    batch: Batch, sides: tuple[_Side, _Side], ports: Ports, first: Ints, last: Ints
) -> _Way:
    away, home = sides
    shape = home.strangers.shape[1], away.strangers.shape[1]
    pieces: list[tuple[Piece, Floats]] = []
    out = _in_host(batch, away, ports.leave.reshape(shape), pieces)
    into = _in_host(batch, home, ports.enter.reshape(shape).T, pieces)
    ends = zip(first.tolist(), last.tolist(), strict=True)
    count = np.array([batch.net.count(one, other) for one, other in ends])
    return _Way(first, last, np.minimum(out, into.T).ravel(), count, pieces)


def _classes(batch: Batch, nodes: Ints) -> Ints:
    """A number from 0 for each class of nodes of one pattern: place in the host, and switches of the host."""
    member = batch.stubs.member[nodes]
    places = batch.stubs.local[nodes][:, None]
    switches = [ends[member] for ends in _pattern(batch, nodes).ends]
    _, labels = distinct(np.concatenate([places, *switches], axis=1))
    return np.asarray(labels)


def _strangers(batch: Batch, nodes: Ints, others: Ints, labels: Ints) -> Floats:
    """Of every node: how many of `others` in each class (`labels`) are not in its host."""
    both = np.concatenate([_host(batch, nodes), _host(batch, others)])
    hosts, where = np.unique(both, return_inverse=True)
    in_class = np.bincount(labels)
    here = np.zeros((len(hosts), len(in_class)))
    np.add.at(here, (where[len(nodes) :], labels), 1.0)
    return np.asarray(in_class - here[where[: len(nodes)]])


def _in_host(
    batch: Batch, side: _Side, port: Ints, pieces: list[tuple[Piece, Floats]]
) -> Ints:
    """Adds the ways between nodes and ports, by the class beyond them; returns the narrowest of each two classes."""
    pattern = _pattern(batch, side.nodes)
    ports = pattern.ports[0 if side.out else 1]
    width = np.zeros(port.shape, dtype=np.int64)
    for number in range(len(ports)):
        through = port == number
        weight = (side.strangers * through[side.labels]).sum(axis=1)
        at = np.flatnonzero(weight)
        numbers = np.full(len(at), number)
        parts, narrowest = batch.ways(pattern, side.nodes, at, numbers, side.out)
        pieces += [(piece, weight[piece.pairs]) for piece in parts]
        by_class = np.zeros(len(port), dtype=np.int64)
        by_class[side.labels[at]] = narrowest
        width += through * by_class[:, None]
    return width


def _pair_by_pair(
    batch: Batch, senders: Ints, receivers: Ints, amount: float, between: bool = False
) -> Floats:
    """All pairs, or those between hosts, in columns."""
    total = np.zeros(batch.size)
    for part in np.array_split(
        senders, max(1, len(senders) * len(receivers) // _CHUNK)
    ):
        src, dst = np.repeat(part, len(receivers)), np.tile(receivers, len(part))
        apart = _host(batch, src) != _host(batch, dst) if between else src != dst
        total += batch.loads(src[apart], dst[apart], np.full(int(apart.sum()), amount))
    return total
