"""Everybody to everybody: bytes on links of a complete exchange, counted by classes of nodes.

Nodes in the same place of like hosts under the same switches use the same doors and the same paths between switches.
So one pair stands for all pairs of two classes, and what is left is to count: how many receivers there are that are
not in the sender's own host.
"""

from __future__ import annotations

import numpy as np

from topologies.core.grouping import groups, opaque
from topologies.core.links import Floats, Ints
from topologies.routes.batch import Batch, Piece
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
    src, dst = np.repeat(senders[one], len(other)), np.tile(receivers[other], len(one))
    patterns = (
        batch.stubs.patterns[batch.stubs.pattern[src[0]]],
        batch.stubs.patterns[batch.stubs.pattern[dst[0]]],
    )
    leave, enter, good, best = batch.doors(*patterns, src, dst)
    if not good.all() or (best != best[0]).any():
        return _pair_by_pair(batch, senders, receivers, amount, between=True)
    shape = len(one), len(other)
    away = _strangers(batch, senders, receivers, second, shape[1])
    home = _strangers(batch, receivers, senders, first, shape[0])
    many = np.stack(
        [np.bincount(first, weights=column, minlength=shape[0]) for column in away.T],
        axis=1,
    ).ravel()
    total, alike = np.zeros(batch.size), set()
    # Each of several best doors carries as much, where their ways are as many and as wide.
    for nth in range(int(best[0])):
        if nth:
            leave, enter, good, _ = batch.doors(*patterns, src, dst, nth)
        s = patterns[0].ends[0][batch.stubs.member[src], leave]
        t = patterns[1].ends[1][batch.stubs.member[dst], enter]
        pieces: list[tuple[Piece, Floats]] = []
        width = np.minimum(
            _doors(batch, senders, first, leave.reshape(shape), away, True, pieces),
            _doors(
                batch, receivers, second, enter.reshape(shape).T, home, False, pieces
            ).T,
        ).ravel()
        ways = np.array([batch.count(int(s[at]), int(t[at])) for at in range(len(src))])
        alike.add((ways.tobytes(), width.tobytes()))
        # Of more paths than are kept, which ones are depends on the pair.
        if (
            not good.all()
            or ways.max(initial=0) * int(best[0]) > MAX_PATHS
            or len(alike) > 1
        ):
            return _pair_by_pair(batch, senders, receivers, amount, between=True)
        for piece, weight in pieces:
            each = np.repeat(weight, piece.rows.shape[1])
            total += np.bincount(piece.rows.ravel(), weights=each, minlength=batch.size)
        for at in np.flatnonzero(many).tolist():
            rows, share = batch.paths(int(s[at]), int(t[at]), 0, int(width[at]))
            total[rows] += share * many[at]
    return total * (amount / int(best[0]))


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


def _doors(
    batch: Batch, nodes: Ints, labels: Ints, door: Ints, many: Floats, out: bool,
    pieces: list[tuple[Piece, Floats]],
) -> Ints:  # fmt: skip
    """Adds the ways between nodes and doors, by the class beyond them; returns the narrowest of each two classes."""
    pattern, width = (
        batch.stubs.patterns[batch.stubs.pattern[nodes[0]]],
        np.zeros(door.shape, dtype=np.int64),
    )
    for way in range((pattern.out if out else pattern.into).shape[1]):
        through = door == way
        weight = (many * through[labels]).sum(axis=1)
        at = np.flatnonzero(weight)
        found: list[Piece] = []
        narrow = batch.ways(pattern, nodes, at, np.full(len(at), way), found, out)
        by_node = np.zeros(len(nodes))
        by_node[at] = weight[at]
        pieces += [(piece, by_node[piece.pairs]) for piece in found]
        by_class = np.zeros(len(door), dtype=np.int64)
        by_class[labels[at]] = narrow
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
