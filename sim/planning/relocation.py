"""The links of a transfer between some GPUs, as those of the same transfer between other GPUs.

A layer is planned where it was recorded, and runs on every stage of a pipeline. Hosts of a cluster are wired alike: a
path leaves another host by the same links in their order, and goes on by the same links of the switches behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prestep.sim.collectives.wires import paths
from prestep.topologies.fabric import Fabric


class Relocation:
    """Links as seen from other GPUs; `rows` finds them."""

    def __init__(self, fabric: Fabric, gpus: Mapping[str, str]) -> None:
        self.fabric, self.wiring = fabric, _wiring(fabric)
        self.alike = all(_bare(a) == _bare(b) for a, b in gpus.items())
        self.nodes = {
            fabric.node_index(a): fabric.node_index(b) for a, b in gpus.items()
        }
        self.links: dict[int, int] = {}

    def rows(self, links: np.ndarray) -> np.ndarray | None:
        """The rows that stand for some links; None where other GPUs are not wired alike."""
        if not self.alike:
            return None
        todo = [link for link in links.tolist() if link not in self.links]
        inside = [link for link in todo if self._is_inside(link)]
        outside = [link for link in todo if not self._is_inside(link)]
        # Hosts first: a switch has links to many of them.
        if not (self._find_all(inside) and self._find_all(outside)):
            return None
        rows = np.array([self.links[link] for link in links.tolist()], dtype=np.int64)
        return rows if len(np.unique(rows)) == len(rows) else None

    def _is_inside(self, link: int) -> bool:
        """Whether a link lies in a host."""
        hosts, out = self.fabric.nodes.hosts, self.wiring.out
        return bool(hosts[out.near[link]] and hosts[out.far[link]])

    def _find_all(self, links: list[int]) -> bool:
        """Finds what stands for each of the links, going on from ends that have been found."""
        while links:
            rest = [link for link in links if not self._find(link)]
            if len(rest) == len(links):
                return False
            links = rest
        return True

    def _find(self, link: int) -> bool:
        """Finds what stands for a link of which an end has been found."""
        for side in (self.wiring.out, self.wiring.into):
            near, far = int(side.near[link]), int(side.far[link])
            if near not in self.nodes:
                continue
            here, there = side.links(near), side.links(self.nodes[near])
            if len(here) != len(there):
                return False
            other = there[here.index(link)]
            beyond = int(side.far[other])
            if self.nodes.setdefault(far, beyond) == beyond:
                self.links[link] = other
                return True
        return False


@dataclass(frozen=True, eq=False)
class _Side:
    """Links by the node at one end.

    Attributes
    ----------
    near, far : np.ndarray of int, shape (links,)
        The node at this end of each, and at the other.
    order, start : np.ndarray of int
        Links by their near node, and where each node's begin among them.
    """

    near: np.ndarray
    far: np.ndarray
    order: np.ndarray
    start: np.ndarray

    @classmethod
    def of(cls, near: np.ndarray, far: np.ndarray, nodes: int) -> _Side:
        order = np.argsort(near, kind="stable")
        start = np.searchsorted(near[order], np.arange(nodes + 1))
        return cls(near, far, order, start)

    def links(self, node: int) -> list[int]:
        """Of a node, in their order."""
        mine: list[int] = self.order[self.start[node] : self.start[node + 1]].tolist()
        return mine


class _Wiring(NamedTuple):
    """Links by the node that they leave, and by the one that they enter."""

    out: _Side
    into: _Side


def _wiring(fabric: Fabric) -> _Wiring:
    """The wiring of a fabric, found once."""

    def make() -> _Wiring:
        (src, dst), nodes = fabric.ends, len(fabric.nodes)
        return _Wiring(_Side.of(src, dst, nodes), _Side.of(dst, src, nodes))

    return paths.once(fabric, ("wiring",), make)


def _bare(name: str) -> str:
    """A node's name without its host's."""
    return name.rpartition("/")[2]
