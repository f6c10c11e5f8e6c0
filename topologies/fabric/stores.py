"""Storage at a cluster: which links bytes take between a host's memory (or a GPU) and a storage system.

A system is a vertex in front of which every host has a link of its own (what one client gets) and all together share
one (what the system takes or gives). They come after the cluster's own links, so that rows of those stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from prestep.sim.errors import InputError, Mistake
from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.fabric import Fabric

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
        port = f"{host}/{self.name}"
        added = []
        if self.client is not None:
            added.append(self._row(host, f"{port}:{op}", self.client))
        limit = self.limits[op]
        if limit is not None:
            # Over a network all hosts share what the system gives; disks and volumes are each host's own.
            shared = self.attach in ("network", "storage")
            added.append(self._row(self.name if shared else port, op, limit))
        added_rows = np.array(added, dtype=np.int64)
        return (
            np.concatenate([rows, added_rows]),
            np.concatenate([usage, np.ones(len(added))]),
        )

    def in_front(self, hosts: float) -> Floats:
        """Bytes/s of all links; those in front of the storage that all hosts share have one part in `hosts`."""
        rates = self.bandwidth.copy()
        rows = [row for (src, _), row in self._added.items() if src == self.name]
        rates[rows] /= max(1.0, hosts)
        return rates

    def of_one_host(self, hosts: float) -> Floats:
        """Bytes/s of all links for one of so many hosts that use nothing but the storage, all at once."""
        rates = self.in_front(hosts)
        if hosts > 1 and self.attach == "storage":
            # A link with neither end in a host is everybody's.
            inside = np.array([bool(host) for host in self.fabric.nodes.hosts])
            src, dst = (inside[ends] for ends in self.fabric.ends)
            rates[: len(src)][~src & ~dst] /= hosts
        return rates

    def rate(self, nodes: Sequence[str], op: Op, hosts: float = 1) -> float:
        """Bytes/s between the storage and the nodes of one host at once, in equal parts.

        `hosts`: how many hosts do the same meanwhile.

        Raises
        ------
        InputError
            If nothing leads there.
        """
        parts = [self.path(node, op) for node in nodes]
        rows = np.concatenate([rows for rows, _ in parts])
        shares = np.concatenate([usage for _, usage in parts]) / len(nodes)
        usage = np.bincount(rows, weights=shares, minlength=len(self.bandwidth))
        carries = usage > 0
        rates = self.of_one_host(hosts)[carries] / usage[carries]
        return float(np.min(rates, initial=np.inf))

    def disk_rates(self, node: str) -> list[float]:
        """Bytes/s at which each disk of a node's host is written.

        Raises
        ------
        InputError
            If the host has none.
        """
        _, dst = self.fabric.ends
        rates = self.fabric.links.bandwidth
        disks = map(self.fabric.node_index, self._devices(node))
        return [float(rates[dst == disk].sum()) for disk in disks]

    def _row(self, src: str, dst: str, rate: float) -> int:
        if (src, dst) not in self._added:
            self._added[src, dst] = len(self.fabric.links) + len(self._rates)
            self._rates.append(rate)
        return self._added[src, dst]

    def _inside(self, node: str, op: Op) -> tuple[Ints, Floats]:
        """The part of the way on the cluster's own links."""
        if self.attach == "block":
            return self._spread(node, self.fabric.nearest(node, "cpu"), op)
        if self.attach == "network":
            return self._to_port(node, op)
        return self._to_devices(self._devices(node), node, op)

    def _to_port(self, node: str, op: Op) -> tuple[Ints, Floats]:
        """The way to the nearest NIC, and the first of its links out of the host."""
        fabric = self.fabric
        nic = fabric.nearest(node, "nic")
        host = fabric.host_of(nic)
        rows, usage = self._spread(node, nic, op)
        src, dst = fabric.ends
        near, far = (src, dst) if op == "write" else (dst, src)
        outside = np.array([fabric.nodes.hosts[at] != host for at in far])
        ports = np.flatnonzero((near == fabric.node_index(nic)) & outside)[:1]
        return (
            np.concatenate([rows, ports]),
            np.concatenate([usage, np.ones(len(ports))]),
        )

    def _devices(self, node: str) -> list[str]:
        """The disks of the node's host, or the cluster's storage servers."""
        nodes, host = self.fabric.nodes, self.fabric.host_of(node)
        devices = [
            name
            for name, kind, place in zip(
                nodes.names, nodes.kinds, nodes.hosts, strict=True
            )
            if kind == self.attach and (kind == "storage" or place == host)
        ]
        if not devices:
            raise InputError(self._nowhere())
        return devices

    def _nowhere(self) -> Mistake:
        disk = self.attach == "nvme"
        missing = "no disk (nvmes = 0)" if disk else "no storage servers"
        return Mistake(
            self.fabric.name,
            self.name,
            missing,
            f"nodes of kind {self.attach}",
            "choose another storage, such as weka or ebs, or a cluster that has them",
        )

    def _to_devices(self, devices: list[str], node: str, op: Op) -> tuple[Ints, Floats]:
        """The ways to all devices, with the bytes in equal shares over them."""
        ways = [self._spread(node, device, op) for device in devices]
        all_rows = np.concatenate([rows for rows, _ in ways])
        all_usage = np.concatenate([usage for _, usage in ways])
        rows, at = np.unique(all_rows, return_inverse=True)
        return rows, np.bincount(at, weights=all_usage) / len(devices)

    def _spread(self, node: str, other: str, op: Op) -> tuple[Ints, Floats]:
        rows, usage = (
            self.fabric.spread(node, other)
            if op == "write"
            else self.fabric.spread(other, node)
        )
        return np.asarray(rows, dtype=np.int64), np.asarray(usage, dtype=np.float64)
