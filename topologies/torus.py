"""Torus: a switch per host, joined to its neighbours in every dimension, around the ends too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, one at every point of the torus.

    Attributes
    ----------
    shape
        Hosts in each dimension; the last one counts fastest.
    torus
        One cable between two neighbours.
    """

    shape: tuple[int, ...] = wiring.counts((4, 4), "host in every dimension", least=1)
    nics: int = wiring.count(8)
    torus: LinkSpec = wiring.CABLE


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""A grid of switches whose ends are joined, with a host at each.

    ::

          |            |            |
        switch0 ---- switch1 ---- switch2 ---- (switch0)      shape = (3, 3): a row closes into a ring,
          |            |            |                         and so does a column
        switch3 ---- switch4 ---- switch5 ---- (switch3)
          |            |            |
        switch6 ---- switch7 ---- switch8 ---- (switch6)      host i hangs under switch i with all its NICs
          |            |            |

    GPU 0 of host 0 reaches GPU 0 of host 1 over ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > switch0 > switch1 >
    host1/nic0 > host1/pcieswitch0 > host1/gpu0``; farther ones over any of the shortest ways, equally.

    Returns
    -------
    networkx.MultiDiGraph
        `prod(shape)` hosts, named as `prestep.topologies.host` does with the prefix ``host0/``; ``switch0``; links
        of kind
        ``nic`` and ``torus``; bandwidths in bytes/s, latencies in s. In a dimension of two the both ways round are two
        cables between the same switches; in a dimension of one there are none.

    Raises
    ------
    InputError
        If the shape is empty or a size is below 1.

    References
    ----------
    Dally and Towles, Principles and Practices of Interconnection Networks, chapter 5: k-ary n-cubes.
    """
    graph = wiring.new_graph("torus", params.gpu, "torus")
    hosts = math.prod(params.shape)
    wiring.add_below(graph, host.pattern(params), hosts, 1, params.nic, "switch")
    for axis, size in enumerate(params.shape):
        stride = math.prod(params.shape[axis + 1 :])
        # Each switch is joined to the one after it; two of them are joined once, by both ways round.
        starts = [
            at for at in range(hosts) if size > 2 or at // stride % size < size - 1
        ]
        ends = [
            at + (1 if at // stride % size < size - 1 else 1 - size) * stride
            for at in starts
        ]
        pairs = list(zip(starts, ends, strict=True))
        cables = 2 if size == 2 else 1
        if pairs:
            wiring.join(
                graph, "switch", "switch", "torus", params.torus, cables, pairs=pairs
            )
    return graph
