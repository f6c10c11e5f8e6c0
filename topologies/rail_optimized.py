"""Rail-optimised fat tree: NIC i of every host in a group hangs under leaf switch i, and spines join the leaves.

With several planes a NIC has a port in each, and each has leaves and spines of its own, which nothing joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the switches over them.

    Attributes
    ----------
    hosts
        How many; groups are filled one after the other, the last one may be smaller.
    hosts_per_group
        Hosts that share their leaves: ports down of one leaf.
    spines
        Spine switches of a plane; every leaf has the same number of cables to each. 0: none, so that rails meet in
        hosts alone and all hosts are one group.
    planes
        Networks side by side; `nic` is one of a NIC's ports, of which it has one in each.
    oversubscription
        Ports down of a leaf for one cable up: 1 is full bisection, 4 lets a quarter of the bytes up at once.
    spine
        One cable between a leaf and a spine.
    """

    hosts: int = wiring.count(32)
    hosts_per_group: int = wiring.count(32)
    spines: int = wiring.count(8, least=0)
    planes: int = wiring.count(1)
    oversubscription: int = wiring.count(1)
    nics: int = wiring.count(8)
    spine: LinkSpec = wiring.CABLE

    @property
    def cables(self) -> int:
        """From one leaf to one spine."""
        return self.hosts_per_group // self.oversubscription // max(1, self.spines)

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        if not self.spines:
            if self.hosts > self.hosts_per_group:
                expected = f"at most hosts_per_group = {self.hosts_per_group}: no spine joins groups"
                yield "hosts", str(self.hosts), expected
            return
        if self.hosts_per_group % (self.oversubscription * self.spines):
            given = (
                f"oversubscription = {self.oversubscription}, spines = {self.spines}"
            )
            expected = "a multiple of oversubscription * spines"
            yield (
                "hosts_per_group",
                f"{self.hosts_per_group} with {given}",
                f"{expected}: equal cables to every spine",
            )


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Groups of hosts under one leaf per rail; spines over all leaves.

    ::

                    spine0        ...        spine7               every leaf to every spine, `cables` to each
                 /    |     \              /    |    \
        group0/leaf0  ...  group0/leaf7   group1/leaf0  ...      leaf i: NIC i of every host of its group
            |    \              |
           nic0  nic0          nic7
          host0  host1         host0

    GPU 0 of host 0 reaches GPU 0 of host 1 over its rail's leaf alone:
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > group0/leaf0 > host1/nic0 > host1/pcieswitch0 > host1/gpu0``.
    To another rail or another group the way is up one spine and down again.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``group0/leaf0``, ``spine0``; links of
        kind ``nic``
        and ``spine``; bandwidths in bytes/s, latencies in s. A spine may have more ports than one switch can: beyond
        eight groups of 64-port switches it stands for several.

    Raises
    ------
    InputError
        If a count is too small, or a leaf's cables do not divide over the spines.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture, DGX H100, compute fabric: rail-optimised full fat tree. NVIDIA Network
    Operator, Spectrum-X: planes. Wang et al., Rail-only (arXiv 2307.12169): no spines.
    """
    graph = wiring.new_graph("rail-optimized", params.gpu, "rail_optimized")
    pattern = host.pattern(params)
    nics = wiring.add_hosts(graph, "host", pattern, copies=params.hosts)
    groups = wiring.by_units(range(params.hosts), params.hosts_per_group)
    for plane in range(params.planes):
        prefix = f"plane{plane}/" if params.planes > 1 else ""
        leaves = [f"{prefix}group{number}/leaf" for number in range(len(groups))]
        for leaf, hosts in zip(leaves, groups, strict=True):
            wiring.add_rails(graph, leaf, hosts, nics, params.nic)
        if params.spines:
            spine = f"{prefix}spine"
            graph.add_node(spine, kind="spine", copies=params.spines)
            for leaf in leaves:
                wiring.join(graph, leaf, spine, "spine", params.spine, params.cables)
    return graph
