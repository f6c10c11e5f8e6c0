"""Everybody to everybody: bytes on links of a complete exchange, counted by classes of nodes.

Nodes in the same place of like hosts under the same switches use the same doors and the same paths between switches.
So one pair stands for all pairs of two classes, and what is left is to count: how many receivers there are that are
not in the sender's own host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.core.grouping import groups, opaque
from topologies.core.links import Floats, Ints
from topologies.routes.batch import Batch, Doors, Piece
from topologies.routes.paths import MAX_PATHS

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
    first, second = _classes(batch, senders), _classes(batch, receivers)
    one, other = (np.unique(labels, return_index=True)[1] for labels in (first, second))
    shape = len(one), len(other)
    src, dst = np.repeat(senders[one], shape[1]), np.tile(receivers[other], shape[0])
    away = _strangers(batch, senders, receivers, second, shape[1])
    home = _strangers(batch, receivers, senders, first, shape[0])
    sides = _Side(senders, first, away, True), _Side(receivers, second, home, False)
    ways = _equal_doors(batch, sides, src, dst)
    if ways is None:
        return _pair_by_pair(batch, senders, receivers, amount, between=True)
    columns = [np.bincount(first, column, shape[0]) for column in away.T]
    pairs: Floats = np.stack(columns, axis=1).astype(np.float64).ravel()
    total = np.zeros(batch.size)
    for way in ways:
        way.add(batch, pairs, total)
    return total * (amount / len(ways))


@dataclass(frozen=True, eq=False)
class _Side:
    """Senders, or receivers: the class of each, and how many on the other side are not in its host, by class."""

    nodes: Ints
    labels: Ints
    strangers: Floats
    out: bool


@dataclass(frozen=True, eq=False)
class _Way:
    """How every two classes go by one of their best doors.

    Attributes
    ----------
    first, last : array
        The switches behind the doors.
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
        """Whether it carries as much as another door."""
        equal = np.array_equal
        return equal(self.count, other.count) and equal(self.width, other.width)

    def add(self, batch: Batch, pairs: Floats, total: Floats) -> None:
        """Adds to `total` one byte for each of `pairs[i]` pairs of the i-th two classes."""
        for piece, weight in self.pieces:
            each = np.repeat(weight, piece.rows.shape[1])
            total += np.bincount(piece.rows.ravel(), weights=each, minlength=batch.size)
        for at in np.flatnonzero(pairs).tolist():
            first, last = int(self.first[at]), int(self.last[at])
            rows, share = batch.paths(first, last, 0, int(self.width[at]))
            total[rows] += share * pairs[at]


def _equal_doors(
    batch: Batch, sides: tuple[_Side, _Side], src: Ints, dst: Ints
) -> list[_Way] | None:
    """The ways by each of the best doors; None where classes do not show that all carry equal shares."""
    stubs = batch.stubs
    leaving = stubs.patterns[stubs.pattern[src[0]]]
    entering = stubs.patterns[stubs.pattern[dst[0]]]
    doors = batch.doors(leaving, entering, src, dst)
    best = int(doors.best[0])
    if not doors.single.all() or (doors.best != best).any():
        return None
    ways: list[_Way] = []
    for nth in range(best):
        doors = batch.doors(leaving, entering, src, dst, nth) if nth else doors
        first = leaving.ends[0][stubs.member[src], doors.leave]
        last = entering.ends[1][stubs.member[dst], doors.enter]
        way = _way(batch, sides, doors, first, last)
        ways.append(way)
        # Of more paths than are kept, which ones are depends on the pair.
        beyond = way.count.max(initial=0) * best > MAX_PATHS
        if beyond or not doors.single.all() or not way.like(ways[0]):
            return None
    return ways


def _way(
    batch: Batch, sides: tuple[_Side, _Side], doors: Doors, first: Ints, last: Ints
) -> _Way:
    away, home = sides
    shape = home.strangers.shape[1], away.strangers.shape[1]
    pieces: list[tuple[Piece, Floats]] = []
    out = _in_host(batch, away, doors.leave.reshape(shape), pieces)
    into = _in_host(batch, home, doors.enter.reshape(shape).T, pieces)
    ends = zip(first.tolist(), last.tolist(), strict=True)
    count = np.array([batch.count(one, other) for one, other in ends])
    return _Way(first, last, np.minimum(out, into.T).ravel(), count, pieces)


def _classes(batch: Batch, nodes: Ints) -> Ints:
    """A number from 0 for each class of nodes of one pattern: place in the host, and switches of the host."""
    pattern = batch.stubs.patterns[batch.stubs.pattern[nodes[0]]]
    member = batch.stubs.member[nodes]
    alike = [
        batch.stubs.local[nodes][:, None],
        *(ends[member] for ends in pattern.ends),
    ]
    return np.asarray(
        np.unique(opaque(np.concatenate(alike, axis=1)), return_inverse=True)[1]
    )


def _strangers(
    batch: Batch, nodes: Ints, others: Ints, labels: Ints, count: int
) -> Floats:
    """Of every node: how many of `others` in each class are not in its host."""
    hosts, where = np.unique(
        np.concatenate([_host(batch, nodes), _host(batch, others)]), return_inverse=True
    )
    here = np.zeros((len(hosts), count))
    np.add.at(here, (where[len(nodes) :], labels), 1.0)
    return np.asarray(np.bincount(labels, minlength=count) - here[where[: len(nodes)]])


def _in_host(
    batch: Batch, side: _Side, door: Ints, pieces: list[tuple[Piece, Floats]]
) -> Ints:
    """Adds the ways between nodes and doors, by the class beyond them; returns the narrowest of each two classes."""
    pattern = batch.stubs.patterns[batch.stubs.pattern[side.nodes[0]]]
    width = np.zeros(door.shape, dtype=np.int64)
    for way in range((pattern.out if side.out else pattern.into).shape[1]):
        through = door == way
        weight = (side.strangers * through[side.labels]).sum(axis=1)
        at = np.flatnonzero(weight)
        parts: list[Piece] = []
        gates = np.full(len(at), way)
        narrow = batch.ways(pattern, side.nodes, at, gates, parts, side.out)
        by_node = np.zeros(len(side.nodes))
        by_node[at] = weight[at]
        pieces += [(piece, by_node[piece.pairs]) for piece in parts]
        by_class = np.zeros(len(door), dtype=np.int64)
        by_class[side.labels[at]] = narrow
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
