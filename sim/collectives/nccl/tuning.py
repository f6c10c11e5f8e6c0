"""The tables of NCCL's cost model, src/graph/tuning.cc, and how they differ between versions.

Microseconds and GB/s, as NCCL writes them. The model selects; it does not predict.
"""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.search import Graph
from prestep.sim.collectives.plan import PROTOS
from prestep.sim.costs.generation import Generation

Row = tuple[float, float, float]


@dataclass(frozen=True)
class Rows:
    """An algorithm's rows of NCCL's tables: microseconds under LL, LL128 and Simple, 0 under a protocol that it lacks.

    Attributes
    ----------
    base : Row
        What every operation costs.
    nvlink, pci, net : Row
        A step over NVLink, over PCIe and between hosts.
    """

    base: Row
    nvlink: Row
    pci: Row
    net: Row

    def between_hosts(self, proto: str) -> float:
        """Seconds of a step between hosts."""
        return self.net[PROTOS.index(proto)] / 1e6


# With one GPU per host NCCL takes a tree's steps between hosts for every algorithm.
TREE_NET = (5.0, 8.5, 14.0)
# A step between hosts that a cluster file's own figure replaces: the file says it for a ring.
RING_NET = (2.7, 4.0, 14.0)
# GB/s that LL is believed to reach on two and on more hosts, whatever the GPU: Volta's, on AMD's hosts Ampere's.
LL_BETWEEN = {False: (39.0, 20.4), True: (22.5, 19.0)}
# Microseconds of a ring's step across hosts; NCCL doubles it on AMD hosts.
NET_OVERHEAD = 1.0


@dataclass(frozen=True)
class Model:
    """What the cost model knows of a communicator: its shape, channels, release, and the GPUs as that counts them."""

    group: Group
    graph: Graph
    kind: Generation
    release: tuple[int, ...]

    @property
    def column(self) -> int:
        """Column of the tables: 0 for one host, 1 for two, 2 for more."""
        return min(self.group.nodes, 3) - 1

    @property
    def local(self) -> int:
        """GPUs per host, as NCCL divides: whole numbers."""
        return self.group.n // self.group.nodes

    def base(self, rows: Rows, proto: str) -> float:
        """Microseconds that every operation costs."""
        return rows.base[PROTOS.index(proto)]

    def inside(self, rows: Rows, proto: str) -> float:
        """Microseconds of a step inside a host."""
        return (rows.nvlink if self.graph.nvlink else rows.pci)[PROTOS.index(proto)]

    def between(self, rows: Rows, proto: str) -> float:
        """Microseconds of a step between hosts."""
        alone = self.group.nodes == self.group.n
        return (TREE_NET if alone else rows.net)[PROTOS.index(proto)]

    def per_channel(self, ring: bool = False) -> float:
        """GB/s of one channel of a ring or tree, the bottleneck that NCCL believes in."""
        if self.group.nodes > 2:
            return self.graph.inter
        return self.graph.ring if ring else self.graph.tree

    def ll_max(self) -> float:
        """Most GB/s that LL is believed to reach."""
        amd = bool(self.group.network.cluster_facts.amd_cpu)
        if self.group.nodes > 1:
            return LL_BETWEEN[amd][self.column - 1]
        return self.kind.ll[0]

    def ll_share(self, op: str) -> float:
        """Share of a ring's bandwidth that LL is believed to reach."""
        if self.release >= (2, 21):
            return 0.5
        several = self.group.nodes > 1 or op in ("all_reduce", "reduce")
        return 1 / 4 if several else 1 / 3

    def steps(self, op: str) -> int:
        """Steps of a ring, which turn bus bandwidth into bytes of the operation."""
        n = self.group.n
        return {
            "all_reduce": 2 * (n - 1),
            "all_gather": n - 1,
            "reduce_scatter": n - 1,
        }.get(op, n)
