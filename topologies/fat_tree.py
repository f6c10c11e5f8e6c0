"""Fat trees of two or three tiers: whole hosts under a leaf, with any whole oversubscription at each tier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the tiers over them.

    Attributes
    ----------
    hosts
        How many; leaves and pods are filled one after the other, the last ones may be smaller.
    hosts_per_leaf
        Hosts under one leaf, with all their NICs.
    leaves_per_pod
        Leaves under the same spines; 0: all of them, which makes two tiers. Else the pods meet in the core.
    spines
        Spine switches of each pod; every leaf has the same number of cables to each.
    cores
        Core switches each spine of a pod reaches; spine j of every pod has the same ones. Without pods there are none.
    oversubscription, core_oversubscription
        Cables down for one cable up, of a leaf and of a spine: 1 is full bisection.
    spine, core
        One cable between a leaf and a spine, and between a spine and a core switch.
    """

    hosts: int = wiring.count(8)
    hosts_per_leaf: int = wiring.count(4)
    leaves_per_pod: int = wiring.count(0, least=0)
    spines: int = wiring.count(4)
    cores: int = wiring.count(4)
    oversubscription: int = wiring.count(1)
    core_oversubscription: int = wiring.count(1)
    nics: int = wiring.count(8)
    spine: LinkSpec = wiring.CABLE
    core: LinkSpec = wiring.CABLE

    @property
    def cables(self) -> int:
        """From one leaf to one spine."""
        return self.hosts_per_leaf * self.nics // (self.oversubscription * self.spines)

    @property
    def core_cables(self) -> int:
        """From one spine to one of its cores."""
        return (
            self.leaves_per_pod
            * self.cables
            // (self.core_oversubscription * self.cores)
        )

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        """Cables that do not divide over the switches above."""
        down = self.hosts_per_leaf * self.nics
        if down % (self.oversubscription * self.spines):
            given = f"{down} ports down and oversubscription = {self.oversubscription}"
            expected = "equal cables: a divisor of ports down / oversubscription"
            yield "spines", f"{self.spines} with {given}", expected
            return
        down = self.leaves_per_pod * self.cables
        if down % (self.core_oversubscription * self.cores):
            given = f"{down} ports down and core_oversubscription = {self.core_oversubscription}"
            expected = "equal cables: a divisor of ports down / core_oversubscription"
            yield "cores", f"{self.cores} with {given}", expected


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Leaves over hosts, spines over leaves, and with pods a core over the spines.

    ::

          core0 .. core3   core4 .. core7            spine j of every pod to cores 4j ... 4j + 3
             |    \            |
        pod0/spine0   ..   pod0/spine3    pod1/spine0 ..       without pods: spine0 .. spine3
             |     \  /        |
           leaf0          leaf1                      every leaf to every spine of its pod
          /     \        /     \
       host0 .. host3  host4 .. host7                all NICs of a host under one leaf

    GPU 0 of host 0 reaches GPU 0 of host 4 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > leaf0 > spine0 > leaf1 > host4/nic0 > host4/pcieswitch0 >
    host4/gpu0``, and equally over the other spines.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``leaf0``, ``spine0`` or ``pod0/spine0``,
        ``core0``;
        links of kind ``nic``, ``spine``, ``core``; bandwidths in bytes/s, latencies in s. A leaf sends
        `hosts_per_leaf * nics / oversubscription` cables' worth upwards. Ports per switch are not limited.

    Raises
    ------
    InputError
        If a count is too small, or cables do not divide over the switches above.

    References
    ----------
    Al-Fares et al., A Scalable, Commodity Data Center Network Architecture (SIGCOMM 2008); Leiserson, Fat-Trees (1985).
    """
    graph = wiring.new_graph("fat-tree", params.gpu, "fat_tree")
    leaves = -(-params.hosts // params.hosts_per_leaf)
    wiring.add_below(
        graph, host.pattern(params), params.hosts, params.hosts_per_leaf, params.nic
    )
    pods = wiring.by_units(range(leaves), params.leaves_per_pod or leaves)
    spines = [
        f"pod{at}/spine" if params.leaves_per_pod else "spine"
        for at in range(len(pods))
    ]
    for spine, pod in zip(spines, pods, strict=True):
        graph.add_node(spine, kind="spine", copies=params.spines)
        pairs = wiring.every(pod, range(params.spines))
        wiring.join(
            graph, "leaf", spine, "spine", params.spine, params.cables, pairs=pairs
        )
    if params.leaves_per_pod:
        graph.add_node("core", kind="core", copies=params.spines * params.cores)
    for plane in range(params.spines if params.leaves_per_pod else 0):
        cores = range(plane * params.cores, (plane + 1) * params.cores)
        for spine in spines:
            pairs = wiring.every([plane], cores)
            wiring.join(
                graph,
                spine,
                "core",
                "core",
                params.core,
                params.core_cables,
                pairs=pairs,
            )
    return graph
