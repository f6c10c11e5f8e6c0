"""Leaf-spine: hosts under leaf switches, and the leaves joined by one spine link each."""

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
    hosts, leaves
        How many; hosts are dealt out over the leaves in order, in equal blocks.
    spine
        What one leaf can send to the others and receive from them: one link each way.
    """

    hosts: int = wiring.count(4, least=2)
    leaves: int = wiring.count(2, least=2)
    nics: int = wiring.count(8)
    spine: LinkSpec = wiring.default_links("leaf_spine")["spine"]

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        if self.hosts % self.leaves:
            yield "hosts", str(self.hosts), f"a multiple of leaves = {self.leaves}"


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Hosts under two or more leaves.

    ::

                 spine                  two leaves: one link between them; more: a spine switch that joins them all
               /       \
           leaf0       leaf1
           /   \       /   \
       host0  host1  host2  host3       each by its NICs

    GPU 0 of host 0 reaches GPU 0 of host 3 over
    ``host0/gpu0 > host0/cpu0 > host0/nic0 > leaf0 > leaf1 > host3/nic0 > host3/cpu0 > host3/gpu0``.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``leaf0``, ...; links of kind ``nic`` and
        ``spine``.

    Raises
    ------
    InputError
        If a count is too small or hosts do not divide over the leaves.
    """
    graph = wiring.new_graph("leaf-spine", params.gpu, "leaf_spine")
    leaves = wiring.add_row(graph, "leaf", params.leaves)
    if params.leaves == 2:
        wiring.join(graph, leaves[0], leaves[1], "spine", params.spine)
    else:
        graph.add_node("spine0", kind="spine")
        for leaf in leaves:
            wiring.join(graph, leaf, "spine0", "spine", params.spine)
    pattern = host.pattern(params)
    for number in range(params.hosts):
        name, leaf = f"host{number}", wiring.slot(leaves, number, params.hosts)
        nics = wiring.add_hosts(graph, name, pattern)
        wiring.join(graph, name, leaf, "nic", params.nic, tail_ports=nics)
    return graph
