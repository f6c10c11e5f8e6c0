"""Routes of whole arrays of pairs; `router` finds the same paths for one pair, and does so where nothing here applies.

A path inside a host is found once for all hosts of one pattern. A path between hosts is one out of a host, one between
two switches, and one into the other host (`stubs`). Pairs for which hop counts do not show that these are all of the
shortest paths are left to the router.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prestep.topologies.core.kinds import NETWORK, rank_of
from prestep.topologies.core.links import (
    Bools,
    Floats,
    Ints,
    Links,
    Nodes,
    compact,
    groups,
)
from prestep.topologies.routes.fan_out import FanOut, fan_outs
from prestep.topologies.routes.net import Net, some_links, some_nodes
from prestep.topologies.routes.pieces import Core, Piece, add_in_order, add_loads
from prestep.topologies.routes.pieces import columns as in_columns
from prestep.topologies.routes.ports import HostPorts, Ports
from prestep.topologies.routes.router import MAX_PATHS, STRIDE, Router
from prestep.topologies.routes.stubs import FAR, Pattern, Stubs, find

_CHUNK = 1 << 18  # pairs at a time: bounds the memory
# Several numbers packed into one key: this many bits are enough for a pattern, a place in a host, and a port.
_BITS = 20
_TWICE = 2 * _BITS
_MASK = (1 << _BITS) - 1


Resolved = tuple[list[Piece], list[Core], list[Piece]]


@dataclass(frozen=True, eq=False)
class _Trips:
    """Pairs with exactly one path to the switches.

    Attributes
    ----------
    pairs
        Positions of them.
    first, last
        The switch at which each comes out of its host, and the one from which it goes into the other.
    width
        Physical links of the narrowest part in the two hosts.
    pieces
        The parts in the hosts, ports included.
    """

    pairs: Ints
    first: Ints
    last: Ints
    width: Ints
    pieces: list[Piece]


class Batch:
    """Routes of a cluster for whole arrays of pairs; nodes are positions in `nodes`."""

    def __init__(self, nodes: Nodes, links: Links, router: Router) -> None:
        self._nodes, self._links, self._router = nodes, links, router
        self._spread: tuple[Ints, Ints, Resolved] | None = None
        self._zeros: list[Floats] = []
        self._routers: dict[Pattern, Router] = {}

    @property
    def size(self) -> int:
        """Rows of the cluster."""
        return len(self._links)

    @cached_property
    def stubs(self) -> Stubs:
        """The hosts by pattern."""
        src, dst = self._router.ends
        return find(self._nodes, self._links, src, dst)

    @cached_property
    def net(self) -> Net:
        """The switches between the hosts."""
        return Net(self._nodes, self._links, self._router.ends, self.stubs.outside)

    @cached_property
    def host_ports(self) -> HostPorts:
        """The ports between hosts."""
        return HostPorts(self.stubs, self.net)

    def loads(self, src: Ints, dst: Ints, amount: Floats) -> Floats:
        """Bytes on every row of `links` when `amount[i]` bytes go from `src[i]` to `dst[i]`."""
        total = np.zeros(len(self._links))
        self._add(total, src, dst, amount)
        return total

    def carried(self, src: Ints, dst: Ints, amount: Floats) -> tuple[Ints, Floats]:
        """Returns the rows that carry anything of `loads`, and the bytes on each."""
        # A column of millions of zeros takes longer to make than to fill: it is used again.
        total = self._zeros.pop() if self._zeros else np.zeros(len(self._links))
        rows, _ = compact(self._add(total, src, dst, amount))
        bytes_ = total[rows]
        total[rows] = 0.0
        self._zeros.append(total)
        some = np.flatnonzero(bytes_ != 0)  # of floats themselves it takes longer
        return rows[some], bytes_[some]

    def _add(self, total: Floats, src: Ints, dst: Ints, amount: Floats) -> Ints:
        """Adds what pairs carry to every row; returns the rows to which anything was added."""
        rows = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(src), _CHUNK):
            part = slice(start, start + _CHUNK)
            pieces, cores, fans = self._resolved(src[part], dst[part])
            rows += add_loads(total, pieces, cores, amount[part])
            rows.append(add_in_order(total, fans, amount[part]))
        return np.concatenate(rows)

    def spreads(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Floats]:
        """(pair, row, share) of every link that the pairs use, sorted by pair, then by row."""
        pieces, cores, fans = resolved = self.resolve(src, dst)
        self._spread = src, dst, resolved
        return in_columns([*pieces, *(core.piece() for core in cores), *fans])

    def spread(self, src: int, dst: int) -> tuple[Ints, Floats]:
        """Returns `Router.spread`, derived from the host's pattern or the ports where these decide."""
        key = (src, dst)
        if key not in self._router.spreads:
            ends = np.array([src]), np.array([dst])
            self.prefetch(*ends)
            if key not in self._router.spreads:
                self._note_unclear(*ends)
        return self._router.spread(src, dst)

    def prefetch(self, src: Ints, dst: Ints) -> None:
        """Keeps `spread` of all pairs where it follows from the host's pattern or from the ports."""
        ends = zip(src.tolist(), dst.tolist(), strict=True)
        new = np.array([key not in self._router.spreads for key in ends], dtype=bool)
        if not new.any():
            return
        new &= self._in_patterns(src, dst) & (src != dst)
        near = self._same_host(src, dst)
        pieces, _ = self._inside(src, dst, np.flatnonzero(new & near))
        fans = self._fans(src, dst, np.flatnonzero(new & ~near))
        pieces += [piece for fan in fans for piece in fan.pieces(self.net)]
        pair, rows, share = in_columns(pieces)
        edges = np.flatnonzero(np.diff(pair)) + 1
        parts = zip(np.split(rows, edges), np.split(share, edges), strict=True)
        for at, part in zip(np.unique(pair).tolist(), parts, strict=False):
            self._router.spreads[int(src[at]), int(dst[at])] = part

    def _resolved(self, src: Ints, dst: Ints) -> Resolved:
        """`resolve`, or what it told `spreads` last: a ring loads the pairs whose ways its group has looked at."""
        if self._spread is not None:
            *ends, resolved = self._spread
            if all(map(np.array_equal, ends, (src, dst))):
                return resolved
        return self.resolve(src, dst)

    def resolve(self, src: Ints, dst: Ints) -> Resolved:
        """Returns the links of pairs: in hosts, between switches, and all of those with several paths to a switch."""
        moves = src != dst
        in_patterns = self._in_patterns(src, dst) & moves
        near = in_patterns & self._same_host(src, dst)
        pieces, longer = self._inside(src, dst, np.flatnonzero(near))
        trips, several = self._trips(src, dst, np.flatnonzero(in_patterns & ~near))
        pieces += [piece for trip in trips for piece in trip.pieces]
        cores = [core for trip in trips for core in self._cores(src, dst, trip)]
        rest, unclear = self._fanned(src, dst, several)
        left = np.concatenate([np.flatnonzero(~in_patterns & moves), longer, unclear])
        rest += [self._routed(src, dst, at) for at in left.tolist()]
        return pieces, cores, rest

    def _fanned(self, src: Ints, dst: Ints, pairs: Ints) -> tuple[list[Piece], Ints]:
        """The links of pairs with several ways to the net, and the pairs whose ways are not clear."""
        fans = list(self._fans(src, dst, pairs))
        pieces = [piece for fan in fans for piece in fan.pieces(self.net)]
        clear = np.concatenate([pairs[:0], *(fan.at for fan in fans)])
        pairs = np.setdiff1d(pairs, clear, assume_unique=True)
        self._note_unclear(src[pairs], dst[pairs])
        return pieces, pairs

    def _note_unclear(self, src: Ints, dst: Ints) -> None:
        """Remember pairs between hosts whose routes do not follow from hop counts."""
        apart = self._in_patterns(src, dst) & ~self._same_host(src, dst)
        for hosts, at in self._by_patterns(src, dst, np.flatnonzero(apart)):
            member = self.stubs.member
            exits = hosts[0].ends[0][member[src[at]]]
            entries = hosts[1].ends[1][member[dst[at]]]
            for leave in exits.T:
                for enter in entries.T:
                    self.net.choose(leave, enter)

    def _routed(self, src: Ints, dst: Ints, at: int) -> Piece:
        """All links of one pair, as the router finds them."""
        rows, share = self._router.spread(int(src[at]), int(dst[at]))
        return Piece(np.array([at]), rows[None, :], share)

    def _in_patterns(self, src: Ints, dst: Ints) -> Bools:
        """Whether both nodes are in hosts that are dead ends of the network."""
        pattern = self.stubs.pattern
        both: Bools = (pattern[src] >= 0) & (pattern[dst] >= 0)
        return both

    def _same_host(self, src: Ints, dst: Ints) -> Bools:
        pattern, member = self.stubs.pattern, self.stubs.member
        same: Bools = (pattern[src] == pattern[dst]) & (member[src] == member[dst])
        return same

    def _inside(self, src: Ints, dst: Ints, pairs: Ints) -> tuple[list[Piece], Ints]:
        """Ways in a host, found in the first of its pattern; and the pairs for which leaving it may be as short."""
        stubs = self.stubs
        pieces = []
        left = [np.empty(0, dtype=np.int64)]
        for number, which in groups(stubs.pattern[src[pairs]]):
            at, host = pairs[which], stubs.patterns[number]
            members = stubs.member[src[at]]
            keys = (stubs.local[src[at]] << _BITS) + stubs.local[dst[at]]
            places, place = np.unique(keys, return_inverse=True)
            order = np.argsort(place, kind="stable")
            rest = np.ones(len(places), dtype=bool)
            for some, inner, share in self._over_switches(host, places):
                rest[some] = False
                line = np.full(len(places), -1)
                line[some] = np.arange(len(some))
                these = order[line[place[order]] >= 0]
                rows = host.rows[members[these, None], inner[line[place[these]]]]
                pieces.append(Piece(at[these], rows, share))
            for one, these in groups(place):
                if not rest[one]:
                    continue
                way = self._way_inside(host, *divmod(int(places[one]), 1 << _BITS))
                if way is None:
                    left.append(at[these])
                else:
                    rows = host.rows[members[these]][:, way[0]]
                    pieces.append(Piece(at[these], rows, way[1]))
        return pieces, np.concatenate(left)

    def _over_switches(
        self, host: Pattern, places: Ints
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Ways of two hops in the first host of a pattern: numbers of some `places`, rows and shares of each."""
        starts, ends = places >> _BITS, places & _MASK
        # To leave a host and come back takes two hops where both nodes have ports.
        to_port = host.away[0].min(axis=1, initial=FAR)[starts]
        from_port = host.home[0].min(axis=1, initial=FAR)[ends]
        stays = np.flatnonzero(to_port + from_port)
        relays = self._inner(host).relays
        for some, rows, share in relays.find(starts[stays], ends[stays], MAX_PATHS):
            yield stays[some], rows, share

    def _way_inside(
        self, host: Pattern, start: int, end: int
    ) -> tuple[Ints, Floats] | None:
        """Places of the rows between two nodes of a host, and the share of each; None where it may be left."""
        if self._is_left(host, start, end):
            return None
        return self._inner(host).spread(start, end)

    def _is_left(self, host: Pattern, start: int, end: int) -> bool:
        """Whether a path out of a host and back may be as short as those between two of its nodes."""
        to_port = host.away[0, start].min(initial=FAR)
        from_port = host.home[0, end].min(initial=FAR)
        return int(self._inner(host).hops(start)[end]) >= int(to_port + from_port) + 2

    def routes(self, src: int, dst: int) -> list[tuple[Ints, float]]:
        """Returns `Router.routes`; within a host those of the first host of its pattern, moved to this one."""
        ends = np.array([src]), np.array([dst])
        if self._in_patterns(*ends).all() and self._same_host(*ends).all():
            stubs = self.stubs
            host = stubs.patterns[int(stubs.pattern[src])]
            start, end = int(stubs.local[src]), int(stubs.local[dst])
            if not self._is_left(host, start, end) or self._stays(host, src, dst):
                rows = host.rows[stubs.member[src]]
                paths = self._inner(host).routes(start, end)
                return [(rows[places], share) for places, share in paths]
        return self._router.routes(src, dst)

    def _stays(self, host: Pattern, src: int, dst: int) -> bool:
        """Whether no path out of this very host and back is as good as those within, by the switches at its ports.

        Of paths with as many hops those without a link of the network are better.
        """
        network = rank_of(self._links.kind[host.rows[0]]).max(initial=0) >= NETWORK
        if network or not self.host_ports.joined(host, host):
            return False
        fewest = self.host_ports.choice(
            host, host, np.array([src]), np.array([dst])
        ).fewest
        start, end = self.stubs.local[[src, dst]].tolist()
        return int(self._inner(host).hops(start)[end]) <= int(fewest[0])

    def _inner(self, host: Pattern) -> Router:
        """Routes within the first host of a pattern, by places of its nodes and rows."""
        if host not in self._routers:
            nodes, rows = host.nodes[0], host.rows[0]
            within = some_nodes(self._nodes, nodes), some_links(self._links, rows)
            self._routers[host] = Router(*within)
        return self._routers[host]

    def _trips(self, src: Ints, dst: Ints, pairs: Ints) -> tuple[list[_Trips], Ints]:
        """Ways between hosts by the ports they take; and the pairs that do not have exactly one way to the net."""
        trips = []
        left = [np.empty(0, dtype=np.int64)]
        for hosts, at in self._by_patterns(src, dst, pairs):
            ports = self.host_ports.ports(*hosts, src[at], dst[at])
            good = ports.single & (ports.best == 1)
            left.append(at[~good])
            trips.append(self._by_ports(hosts, src, dst, at[good], ports.of(good)))
        return trips, np.concatenate(left)

    def _fans(self, src: Ints, dst: Ints, pairs: Ints) -> Iterator[FanOut]:
        """Pairs of which it is clear by which of several ports their bytes go, by those ports."""
        for hosts, at in self._by_patterns(src, dst, pairs):
            yield from fan_outs(self.host_ports, hosts, src[at], dst[at], at)

    def _by_patterns(
        self, src: Ints, dst: Ints, pairs: Ints
    ) -> Iterator[tuple[tuple[Pattern, Pattern], Ints]]:
        """Pairs by the patterns of their hosts."""
        stubs = self.stubs
        key = (stubs.pattern[src[pairs]] << _BITS) + stubs.pattern[dst[pairs]]
        for value, which in groups(key):
            hosts = stubs.patterns[value >> _BITS], stubs.patterns[value & _MASK]
            yield hosts, pairs[which]

    def _by_ports(
        self,
        hosts: tuple[Pattern, Pattern],
        src: Ints,
        dst: Ints,
        at: Ints,
        ports: Ports,
    ) -> _Trips:
        """The ways of some pairs between hosts of two patterns, by the ports that each takes."""
        out, width_out = self.ways(hosts[0], src, at, ports.leave, True)
        into, width_in = self.ways(hosts[1], dst, at, ports.enter, False)
        first, last = self.switches(hosts, src[at], dst[at], ports)
        width = np.minimum(width_out, width_in)
        return _Trips(at, first, last, width, out + into)

    def switches(
        self, hosts: tuple[Pattern, Pattern], src: Ints, dst: Ints, ports: Ports
    ) -> tuple[Ints, Ints]:
        """The switch behind the port out of each pair, and the one behind its port in."""
        member = self.stubs.member
        first = hosts[0].ends[0][member[src], ports.leave]
        last = hosts[1].ends[1][member[dst], ports.enter]
        return first, last

    def ways(
        self, pattern: Pattern, node: Ints, at: Ints, port: Ints, out: bool
    ) -> tuple[list[Piece], Ints]:
        """The rows from nodes to their ports (or back), ports included; and the narrowest of each."""
        local, member = self.stubs.local[node[at]], self.stubs.member[node[at]]
        pieces = []
        width = np.zeros(len(at), dtype=np.int64)
        for value, which in groups((local << _BITS) + port):
            number = value & _MASK
            inner = pattern.way(value >> _BITS, number, out)
            width[which] = pattern.width_of(inner, number, out)
            rows = pattern.rows_of(member[which], inner, number, out)
            pieces.append(Piece(at[which], rows, np.ones(rows.shape[1])))
        return pieces, width

    def _cores(self, src: Ints, dst: Ints, trips: _Trips) -> list[Core]:
        """Pairs by the switches between which they go, and by the paths they take there."""
        ends = trips.first * len(self.stubs.outside) + trips.last
        shift = self._shifts(src[trips.pairs], dst[trips.pairs], ends)
        _, where = np.unique(ends, return_inverse=True)
        # On paths of equal width the narrower ends change nothing.
        key = _packed(_packed(where, shift), trips.width)
        columns = np.stack([trips.first, trips.last, shift, trips.width], axis=1)
        cores = []
        for _, which in groups(key):
            s, t, shifted, width = columns[which[0]].tolist()
            rows, share = self.net.paths(s, t, shifted, width)
            if len(rows):
                cores.append(Core(trips.pairs[which], rows, share))
        return cores

    def _shifts(self, src: Ints, dst: Ints, ends: Ints) -> Ints:
        """Of more paths than are kept, which ones are: a number that depends on the pair, and repeats with the step."""
        size = len(self.stubs.outside)
        switches, where = np.unique(ends, return_inverse=True)
        count = [self.net.count(*divmod(value, size)) for value in switches.tolist()]
        step = np.maximum(1, np.array(count, dtype=np.int64) // MAX_PATHS)
        shifts: Ints = (src * STRIDE + dst) % step[where]
        return shifts


def _packed(high: Ints, low: Ints) -> Ints:
    """Two columns of numbers from 0 as one number each."""
    return high * int(low.max(initial=0) + 1) + low
