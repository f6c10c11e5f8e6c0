"""The tables of NCCL's cost model, src/graph/tuning.cc, and how they differ between versions.

Microseconds and GB/s, as NCCL writes them. The model selects; it does not predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sim.collectives.group import Group
from sim.collectives.search import Graph

Row = tuple[float, float, float]
PROTOS = ("LL", "LL128", "Simple")
# By protocol. An algorithm without LL and LL128 has 0 there.
BASE: Mapping[str, Row] = {
    "tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "collnet_direct": (0, 0, 0), "collnet_chain": (0, 0, 0),
    "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (8.0, 8.0, 8.0),
}  # fmt: skip
HOP: Mapping[str, Mapping[str, Row]] = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "collnet_direct": (0, 0, 3.7),
        "collnet_chain": (0, 0, 2.8), "nvls": (0, 0, 25.0), "nvls_tree": (0, 0, 25.0), "pat": (0, 0, 4.0),
    },
    "pci": {
        "tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "collnet_direct": (0, 0, 3.7),
        "collnet_chain": (0, 0, 2.8), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (0, 0, 4.0),
    },
    "net": {
        "tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "collnet_direct": (0, 0, 31.0),
        "collnet_chain": (0, 0, 30.0), "nvls": (0, 0, 18.0), "nvls_tree": (0, 0, 20.9), "pat": (0, 0, 14.0),
    },
}  # fmt: skip
# For one, two, more hosts. LL: by GPU on one host; NCCL takes the first row (the second on AMD hosts) on several.
LL_MAX = {
    "volta": (39.0, 39.0, 20.4), "ampere": (87.7, 22.5, 19.0), "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}  # fmt: skip
RING_LL128 = {"volta": (20.0,) * 3, "ampere": (20.0,) * 3, "hopper": (36.7,) * 3, "blackwell": (40.0,) * 3}
TREE_LL128 = {
    "volta": (20.0,) * 3, "ampere": (20.0,) * 3, "hopper": (36.7, 36.7, 29.0), "blackwell": (55.6, 31.67, 20.0),
}  # fmt: skip
TREE = {
    "volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}  # fmt: skip
NVLS_TREE = {
    "volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}  # fmt: skip
NVLS_EFFICIENCY = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
# Factor on a tree's bandwidth by log2 of the size in units of 64 bytes.
TREE_FACTOR = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
NET_OVERHEAD = 1.0  # microseconds of a ring's step across hosts; NCCL doubles it on AMD hosts


@dataclass(frozen=True)
class Model:
    """What the cost model knows of a communicator: its shape, the channels found, GPU generation and version."""

    group: Group
    graph: Graph
    kind: str
    release: tuple[int, int]

    @property
    def column(self) -> int:
        """Column of the tables: 0 for one host, 1 for two, 2 for more."""
        return min(self.group.nodes, 3) - 1

    @property
    def local(self) -> int:
        """GPUs per host, as NCCL divides: whole numbers."""
        return self.group.n // self.group.nodes

    def base(self, algo: str, proto: str) -> float:
        """Microseconds that every operation costs."""
        if algo == "tree" and proto == "Simple" and self.release < (2, 23):
            return 0.0
        if algo == "nvls" and self.release < (2, 21):
            return 23.0
        return BASE[algo][PROTOS.index(proto)]

    def hop(self, where: str, algo: str, proto: str) -> float:
        """Microseconds of a step over nvlink, pci or net."""
        if where == "nvlink" and algo == "tree" and proto == "Simple" and (2, 21) <= self.release < (2, 23):
            return 28.0
        if where == "nvlink" and algo == "nvls" and self.release < (2, 21):
            return 0.0
        if where == "net" and algo == "nvls_tree" and self.release < (2, 28):
            return 14.0 if self.release >= (2, 21) else 19.0
        return HOP[where][algo][PROTOS.index(proto)]

    def inside(self, algo: str, proto: str) -> float:
        """Microseconds of a step inside a host."""
        return self.hop("nvlink" if self.graph.nvlink else "pci", algo, proto)

    def between(self, algo: str, proto: str) -> float:
        """Microseconds of a step between hosts; with one GPU per host NCCL takes the tree's."""
        return self.hop("net", "tree" if self.group.nodes == self.group.n else algo, proto)

    def per_channel(self, ring: bool = False) -> float:
        """GB/s of one channel of a ring or tree, the bottleneck that NCCL believes in."""
        if self.group.nodes > 2:
            return self.graph.inter
        return self.graph.ring if ring else self.graph.tree

    def ll_max(self) -> float:
        """Most GB/s that LL is believed to reach."""
        if self.group.nodes > 1:
            return LL_MAX["ampere" if self.group.network.amd else "volta"][self.column]
        old = self.kind == "hopper" and self.release < (2, 21)
        return LL_MAX["ampere" if old else self.kind][self.column]

    def ll_share(self, op: str) -> float:
        """Share of a ring's bandwidth that LL is believed to reach."""
        if self.release >= (2, 21):
            return 0.5
        return 1 / 4 if self.group.nodes > 1 or op in ("all_reduce", "reduce") else 1 / 3

    def tree_max(self, table: Mapping[str, tuple[float, ...]]) -> float:
        """GB/s per channel of a tree; Blackwell counted as twice Hopper before 2.28."""
        if self.kind == "blackwell" and self.release < (2, 28):
            return 2 * table["hopper"][self.column]
        if table is NVLS_TREE and self.kind == "blackwell" and self.column == 2 and self.release < (2, 30):
            return 43.8
        return table[self.kind][self.column]

    def steps(self, op: str) -> int:
        """Steps of a ring, which turn bus bandwidth into bytes of the operation."""
        n = self.group.n
        return {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(op, n)

    def nvls_bus(self, op: str, tree: bool) -> float:
        """GB/s of bus bandwidth through the NVSwitches' multicast, of all channels."""
        heads = self.graph.heads
        if heads < 2:
            return 0.0
        inside = self.graph.nvls * NVLS_EFFICIENCY[self.kind] * (heads - 1) / heads
        inside *= 2 if op == "all_reduce" else (self.local - 1) / self.local
        bus = min(inside, self.graph.nvls_inter * (2 if tree and self.group.nodes <= 2 else 1))
        return heads * (min(bus, self.tree_max(NVLS_TREE)) if tree else bus)
