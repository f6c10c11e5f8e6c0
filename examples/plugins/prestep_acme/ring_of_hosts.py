"""Hosts in a ring: every host has one cable to the next, the last one to the first."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric.wiring import add_hosts, count, join, new_graph

CABLE = LinkSpec(
    Quantity(48e9, "guess", "one 400 Gbit/s port"),
    Quantity(1e-6, "guess", "order of magnitude of a hop"),
)


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the ring between them.

    Attributes
    ----------
    hosts
        How many; a field of this name lets `hosts = 16` in a scenario scale the cluster.
    cable
        From one host's switch to the next.
    """

    hosts: int = count(4)
    cable: LinkSpec = CABLE


def build(params: Params) -> nx.MultiDiGraph[str]:
    """A switch for every host, joined in a ring.

    ::

        switch0 --- switch1 --- switch2 --- switch3 --- (switch0)
           |           |           |           |
         host0       host1       host2       host3        each by its NICs

    GPU 0 of host 0 reaches GPU 0 of host 2 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > switch0 > switch1 > switch2 > host2/nic0 > ...``, or backwards.
    """
    graph = new_graph("ring-of-hosts", params.gpu, "ring_of_hosts")
    pattern = host.pattern(params)  # one host, which the ring repeats
    for at in range(params.hosts):
        graph.add_node(f"switch{at}", kind="leaf")
        nics = add_hosts(graph, f"host{at}", pattern)
        ends = f"host{at}", f"switch{at}"
        join(graph, *ends, "nic", params.nic, tail_ports=nics)
    for at in range(params.hosts if params.hosts > 2 else params.hosts - 1):
        ends = f"switch{at}", f"switch{(at + 1) % params.hosts}"
        join(graph, *ends, "cable", params.cable)
    return graph
