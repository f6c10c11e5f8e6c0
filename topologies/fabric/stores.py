"""Storage at a cluster: which links bytes take between a host's memory (or a GPU) and a storage system.

A system is a vertex in front of which every host has a link of its own (what one client gets) and all together share
one (what the system takes or gives). They come after the cluster's own links, so that rows of those stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sim.errors import InputError, Mistake
from topologies.core.links import Floats, Ints
from topologies.fabric import Fabric

Op = Literal["read", "write"]


@dataclass(eq=False)
class Stores:
    """The links between a fabric and a storage system; `bandwidth` (bytes/s) and `names` cover the cluster's too.

    Attributes
    ----------
    fabric : Fabric
    name, attach : str
        Of the system; `attach`: "nvme", "block", "network", "storage".
    limits : mapping
        Bytes/s of the whole system by direction; None: the cluster's links decide.
    client : float or None
        Bytes/s of one host.
    """

    fabric: Fabric
    name: str
    attach: str
    limits: dict[str, float | None]
    client: float | None = None
    _added: dict[tuple[str, str], int] = field(default_factory=dict)
    _rates: list[float] = field(default_factory=list)

    @property
    def bandwidth(self) -> Floats:
        """Bytes/s of all links: the cluster's, then those in front of the storage."""
        return np.concatenate(
            [self.fabric.links.bandwidth, np.array(self._rates, dtype=np.float64)]
        )

    @property
    def names(self) -> list[str]:
        """Names of the added links, in order."""
        return [f"{src}-{dst}" for src, dst in self._added]

    def path(self, node: str, op: Op) -> tuple[Ints, Floats]:
        """Links between a node (memory, or a GPU) and the storage, and the bytes on each per byte that moves.

        Raises
        ------
        InputError
            If the host has nothing that leads there: no disk, no NIC, no storage server.
        """
        host = self.fabric.host_of(node) or node
        rows, usage = self._inside(node, op)
        whole = self.limits[op]
        extra: list[tuple[str, str, float]] = []
        shared = self.attach in ("network", "storage")
        port = f"{host}/{self.name}"
        if self.client is not None:
            extra.append((host, port, self.client))
        if whole is not None:
            extra.append(
                (self.name if shared else port, f"{op}", whole)
                if shared
                else (port, op, whole)
            )
        added = [
            self._row(src, f"{dst}:{op}" if src == host else dst, rate)
            for src, dst, rate in extra
        ]
        return np.concatenate([rows, np.array(added, dtype=np.int64)]), np.concatenate(
            [usage, np.ones(len(added))]
        )

    def _row(self, src: str, dst: str, rate: float) -> int:
        if (src, dst) not in self._added:
            self._added[src, dst] = len(self.fabric.links) + len(self._rates)
            self._rates.append(rate)
        return self._added[src, dst]

    def _inside(self, node: str, op: Op) -> tuple[Ints, Floats]:
        """The part of the way on the cluster's own links."""
        fabric, host = self.fabric, self.fabric.host_of(node)
        if self.attach == "block":
            return self._spread(node, fabric.nearest(node, "cpu"), op)
        if self.attach == "network":
            nic = fabric.nearest(node, "nic")
            rows, usage = self._spread(node, nic, op)
            ends = fabric.ends
            here = fabric.node_index(nic)
            away = np.array(
                [
                    fabric.nodes.hosts[at] != fabric.host_of(nic)
                    for at in ends[1 if op == "write" else 0]
                ]
            )
            out = np.flatnonzero((ends[0 if op == "write" else 1] == here) & away)[:1]
            return np.concatenate([rows, out]), np.concatenate(
                [usage, np.ones(len(out))]
            )
        wanted = [
            name
            for name, kind, at in zip(
                fabric.nodes.names, fabric.nodes.kinds, fabric.nodes.hosts, strict=True
            )
            if kind == self.attach and (kind == "storage" or at == host)
        ]
        if not wanted:
            what = (
                "no disk (nvmes = 0)" if self.attach == "nvme" else "no storage servers"
            )
            hint = "choose another storage, such as weka or ebs, or a cluster that has them"
            raise InputError(
                Mistake(
                    fabric.name, self.name, what, f"nodes of kind {self.attach}", hint
                )
            )
        parts = [self._spread(node, name, op) for name in wanted]
        rows, at = np.unique(
            np.concatenate([rows for rows, _ in parts]), return_inverse=True
        )
        return rows, np.bincount(
            at, weights=np.concatenate([usage for _, usage in parts])
        ) / len(wanted)

    def _spread(self, node: str, other: str, op: Op) -> tuple[Ints, Floats]:
        rows, usage = (
            self.fabric.spread(node, other)
            if op == "write"
            else self.fabric.spread(other, node)
        )
        return np.asarray(rows, dtype=np.int64), np.asarray(usage, dtype=np.float64)
