"""Dragonfly: groups of fully connected switches, and cables between every two groups.

Dragonfly+: a group is a fat tree of its own, whose spines have the cables to other groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the switches between them.

    Attributes
    ----------
    hosts
        How many; switches and groups are filled one after the other, the last ones may hold fewer hosts.
    hosts_per_switch
        Hosts under one switch, with all their NICs.
    switches_per_group
        Switches of a group; each has a cable to each other one, or to each spine of its group.
    spines_per_group
        Spines of a group (dragonfly+); 0: none, its switches have the cables to other groups.
    global_cables
        Cables to other groups of a spine, or of a switch where there are none.
    local, wide
        One cable inside a group, and between two groups (links of kind ``global``).
    """

    hosts: int = wiring.count(18)
    hosts_per_switch: int = wiring.count(1)
    switches_per_group: int = wiring.count(4)
    spines_per_group: int = wiring.count(0, least=0)
    global_cables: int = wiring.count(2)
    nics: int = wiring.count(8)
    local: LinkSpec = wiring.CABLE
    wide: LinkSpec = wiring.CABLE

    @property
    def groups(self) -> int:
        """Groups begun; all of their switches are there."""
        return -(-self.hosts // (self.hosts_per_switch * self.switches_per_group))

    @property
    def outward(self) -> int:
        """Cables of a group to others."""
        return (self.spines_per_group or self.switches_per_group) * self.global_cables

    @property
    def cables(self) -> int:
        """Between any two groups: a group's cables shared evenly, what is left over stays unused."""
        return self.outward // max(1, self.groups - 1)

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        cables = self.outward
        if self.cables < 1:
            most = (cables + 1) * self.switches_per_group * self.hosts_per_switch
            expected = f"at most {most}: a group has {cables} cables to others"
            yield "hosts", str(self.hosts), expected


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Groups of switches, every switch joined to all of its group, every group to all others.

    ::

        group0/switch0 --- group0/switch1        each of the four to the other three: kind local
              |      \   /      |      \
              |       \ /       |       \------- group1/switch3       kind global: `cables` to every other group
              |       / \       |
        group0/switch3 --- group0/switch2
              |
            host3                                all NICs of a host under one switch

    GPU 0 of host 0 reaches GPU 0 of host 1 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > group0/switch0 > group0/switch1 > host1/nic0 > host1/pcieswitch0 >
    host1/gpu0``. Between groups the way is at most local, global, local. Where two global cables meet in one switch of
    a third group, that way is as short or shorter, and is taken: routes here are those with the fewest hops.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``group0/switch0``; links of kind
        ``nic``, ``local``
        and ``global``; bandwidths in bytes/s, latencies in s. The largest has
        `switches_per_group * global_cables + 1` groups, with one cable between each two.

    Raises
    ------
    InputError
        If a count is too small, or a group has fewer cables than there are other groups.

    References
    ----------
    Kim et al., Technology-Driven, Highly-Scalable Dragonfly Topology (ISCA 2008), with the cables of a group going to
    the groups after it, in order. Shpiner et al., Dragonfly+: Low Cost Topology for Scaling Datacenters (HiPINEB 2017).
    """
    graph = wiring.new_graph("dragonfly", params.gpu, "dragonfly")
    nics = wiring.add_hosts(graph, "host", host.pattern(params), copies=params.hosts)
    kind = "leaf" if params.spines_per_group else "switch"
    groups = [f"group{number}/{kind}" for number in range(params.groups)]
    size = params.switches_per_group
    pairs = list(combinations(range(size), 2))
    edges = groups
    if params.spines_per_group:
        edges = [f"group{number}/spine" for number in range(params.groups)]
    for group, edge in zip(groups, edges, strict=True):
        graph.add_node(group, kind=kind, copies=size)
        if edge == group:
            wiring.join(graph, group, group, "local", params.local, pairs=pairs)
        else:
            graph.add_node(edge, kind="spine", copies=params.spines_per_group)
            wiring.join(graph, group, edge, "local", params.local)
    hosts = wiring.by_units(range(params.hosts), size * params.hosts_per_switch)
    for group, members in zip(groups, hosts, strict=True):
        pairs = [(at, at // params.hosts_per_switch % size) for at in members]
        wiring.join(
            graph, "host", group, "nic", params.nic, tail_ports=nics, pairs=pairs
        )
    for one, other in combinations(range(len(groups)), 2):
        for pair, cables in _between(params, one, other).items():
            ends = edges[one], edges[other]
            wiring.join(graph, *ends, "global", params.wide, cables, pairs=[pair])
    return graph


def _between(params: Params, one: int, other: int) -> Counter[tuple[int, int]]:
    """Cables between switches of two groups. Port t of a group is at switch t // global_cables."""
    first = ((other - one - 1) % params.groups) * params.cables
    last = ((one - other - 1) % params.groups) * params.cables
    each = params.global_cables
    return Counter(
        ((first + cable) // each, (last + cable) // each)
        for cable in range(params.cables)
    )
