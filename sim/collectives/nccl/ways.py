"""Ways between the nodes of a host, as NCCL finds and names them (src/graph/paths.cc, topo.h).

Types of distance: LOC, NVL, NVB (over a GPU), C2C, PIX (one PCIe switch), PXB (several), P2C, PXN (a GPU's NIC over
NVLink), PHB (over a CPU), SYS (between sockets).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

TYPES = (
    "LOC",
    "NVL",
    "NVB",
    "C2C",
    "PIX",
    "PXB",
    "P2C",
    "PXN",
    "PHB",
    "SYS",
    "NET",
    "DIS",
)
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS = range(12)
LOCAL = 5_000_000  # MB/s of what is not a link
INTEL = 6 / 5  # what peer-to-peer traffic over an Intel CPU costs its PCIe links


class Way(NamedTuple):
    """From one node to another: distance, hops, MB/s, and what one MB/s takes from every link on it."""

    type: int = DIS
    hops: int = 0
    speed: int = 0
    links: tuple[int, ...] = ()
    cost: tuple[float, ...] = ()


@dataclass
class Node:
    kind: str
    links: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # (link, other node, type), fastest first


class Builder:
    """Nodes and directed links; `type` of a link: NVL, C2C, PIX (PCIe), SYS, NET; `intel`: whose CPUs they are."""

    def __init__(self, intel: bool) -> None:
        self.intel = intel
        self.nodes: list[Node] = []
        self.room: list[int] = []
        self.type: list[int] = []
        self.reverse: list[int] = []

    def node(self, kind: str) -> int:
        self.nodes.append(Node(kind))
        return len(self.nodes) - 1

    def link(self, a: int, b: int, kind: int, speed: int) -> None:
        for src, dst in ((a, b), (b, a)):
            at = len(self.room)
            self.room.append(speed)
            self.type.append(kind)
            self.nodes[src].links.append((at, dst, kind))
            self.nodes[src].links.sort(key=lambda entry: -self.room[entry[0]])
        self.reverse += [len(self.room) - 1, len(self.room) - 2]

    def of_kind(self, kind: str) -> list[int]:
        """Nodes of a kind."""
        return [at for at, node in enumerate(self.nodes) if node.kind == kind]

    def links_of(self, node: int, type_: int) -> list[int]:
        """Links of a type that leave a node, fastest first."""
        return [at for at, _, kind in self.nodes[node].links if kind == type_]

    def ways(self, base: int) -> list[Way]:
        """From every node to `base`: fewest hops first, a longer way only if it is faster."""
        ways = [Way() for _ in self.nodes]
        ways[base] = Way(LOC, 0, LOCAL)
        nodes = [base]
        while nodes:
            following: list[int] = []
            for node in nodes:
                for at, other, kind in self.nodes[node].links:
                    if self._leads_on(base, node, other, kind, ways[node]) and (
                        self._extend(ways, node, at, other, kind)
                    ):
                        following.append(other)
            nodes = list(dict.fromkeys(following))
        if not self.intel:
            return ways
        kinds = (node.kind for node in self.nodes)
        return [
            self._dear(way) if way.type == PHB and kind == "gpu" else way
            for way, kind in zip(ways, kinds, strict=True)
        ]

    def _leads_on(self, base: int, node: int, other: int, kind: int, way: Way) -> bool:
        """Through a GPU only as one hop of NVLink to another GPU."""
        if node == base or self.nodes[node].kind != "gpu":
            return True
        return kind == NVL and self.nodes[other].kind == "gpu" and way.hops <= 1

    def _extend(
        self, ways: list[Way], node: int, at: int, other: int, kind: int
    ) -> bool:
        """Whether a link to `node` gives `other` a better way than it has."""
        way, rival = ways[node], ways[other]
        speed = min(way.speed, self.room[at])
        if (rival.speed and rival.hops <= way.hops) or rival.speed >= speed:
            return False
        type_ = max(way.type, self._type(node, other, kind, way))
        links, cost = (self.reverse[at], *way.links), (1.0, *way.cost)
        ways[other] = Way(type_, way.hops + 1, speed, links, cost)
        return True

    def _type(self, node: int, other: int, kind: int, way: Way) -> int:
        """The distance that a link makes of the way that it continues."""
        here, there = self.nodes[node].kind, self.nodes[other].kind
        if here == "gpu" and way.type == kind == NVL and way.hops > 0:
            return NVB
        if kind == PIX and "cpu" in (here, there):
            return PHB
        if here == there == "pci":
            return PXB
        return LOC if kind == NET else kind

    def _dear(self, way: Way) -> Way:
        """A way over an Intel CPU, which takes more of PCIe links."""
        cost = (INTEL if self.type[at] == PIX else 1.0 for at in way.links)
        return way._replace(cost=tuple(cost))


def reversed_bits(number: int, power: int) -> int:
    """The bits of a number below a power of two in reverse, by which NCCL spreads what comes in order.

    Examples
    --------
    >>> [reversed_bits(k, 8) for k in range(4)]
    [0, 4, 2, 6]
    """
    bits = power.bit_length() - 1
    return int(format(number % power, f"0{bits}b")[::-1], 2) if bits else 0


def joined(first: Way, second: Way, type_: int | None = None) -> Way:
    """Over a node in between."""
    return Way(
        max(first.type, second.type) if type_ is None else type_,
        first.hops + second.hops,
        min(first.speed, second.speed),
        first.links + second.links,
        first.cost + second.cost,
    )
