"""Three-layer Ethernet Clos: racks of a few hosts, pods without oversubscription, and a narrow layer over the pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring

LINKS = wiring.default_links("ethernet_clos")


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the three layers over them.

    Attributes
    ----------
    hosts
        How many; racks and pods are filled one after the other, the last ones may be smaller.
    hosts_per_rack
        Hosts under one leaf (rack switch), with all their NICs.
    racks_per_pod
        Racks under the same spines (cluster switches).
    spines
        Spines of each pod; every leaf has as many cables up as ports down, shared evenly.
    oversubscription
        Cables down for one cable up of a spine. The spine's cables up are the nearest whole number, at least 1.
    spine, core
        One cable between a leaf and a spine, and between a spine and a core (aggregation) switch.
    """

    hosts: int = wiring.count(8)
    hosts_per_rack: int = wiring.count(2)
    racks_per_pod: int = wiring.count(192)
    spines: int = wiring.count(16)
    oversubscription: int = wiring.count(7)
    nics: int = wiring.count(8)
    spine: LinkSpec = LINKS["spine"]
    core: LinkSpec = LINKS["spine"]

    @property
    def cables(self) -> int:
        """From one leaf to one spine."""
        return self.hosts_per_rack * self.nics // self.spines

    @property
    def cores(self) -> int:
        """Core switches: every spine of every pod has one cable to each."""
        return max(1, round(self.racks_per_pod * self.cables / self.oversubscription))

    @property
    def racks(self) -> int:
        """Racks begun."""
        return -(-self.hosts // self.hosts_per_rack)

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        down = self.hosts_per_rack * self.nics
        if down % self.spines:
            found = f"{self.spines} for leaves with {down} ports down"
            yield "spines", found, "a divisor of the ports down: equal cables up"


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Racks under leaves, leaves under the spines of their pod, pods under the core.

    ::

             core0    ...    core26                        one cable from every spine of every pod: 7 down, 1 up
            /   |   \       /   |   \
        pod0/spine0 .. pod0/spine15    pod1/spine0 ..      only with two pods or more is there a core
             |    \  /    |                |
           leaf0 ...   leaf191           leaf192           as many cables up as down
           /    \
        host0  host1                                       all NICs of a host under its rack's leaf

    GPU 0 of host 0 reaches GPU 0 of host 2, in the next rack, over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > leaf0 > pod0/spine0 > leaf1 > host2/nic0 > host2/pcieswitch0 >
    host2/gpu0``, and equally over the pod's other spines.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``leaf0``, ``pod0/spine0``, ``core0``;
        links of kind
        ``nic``, ``spine``, ``core``; bandwidths in bytes/s, latencies in s. 3,072 hosts are the 24,576 GPUs of the
        reference: 8 pods of 3,072. Ports per switch are not limited: spines and cores there are modular.

    Raises
    ------
    InputError
        If a count is too small, or a leaf's cables do not divide over the spines.

    References
    ----------
    The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.1: racks of 16 GPUs in two servers, 192 racks per pod
    with full bisection, 8 pods, 1:7 between pods. The numbers of spines and cores are guesses; the rates are not.
    """
    graph = wiring.new_graph("ethernet-clos", params.gpu, "ethernet_clos")
    wiring.add_below(
        graph, host.pattern(params), params.hosts, params.hosts_per_rack, params.nic
    )
    pods = wiring.by_units(range(params.racks), params.racks_per_pod)
    spines = [f"pod{number}/spine" for number in range(len(pods))]
    for spine, pod in zip(spines, pods, strict=True):
        graph.add_node(spine, kind="spine", copies=params.spines)
        pairs = wiring.every(pod, range(params.spines))
        wiring.join(
            graph, "leaf", spine, "spine", params.spine, params.cables, pairs=pairs
        )
    if len(pods) > 1:
        graph.add_node("core", kind="core", copies=params.cores)
        for spine in spines:
            wiring.join(graph, spine, "core", "core", params.core)
    return graph
