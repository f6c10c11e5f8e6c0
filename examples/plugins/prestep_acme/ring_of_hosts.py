"""Hosts in a ring: every host has one cable to the next, the last one to the first."""

from __future__ import annotations

from dataclasses import dataclass, fields

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder

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

    hosts: int = 4
    cable: LinkSpec = CABLE


def build(params: Params) -> Fabric:
    """A switch for every host, joined in a ring.

    ::

        switch0 --- switch1 --- switch2 --- switch3 --- (switch0)
           |           |           |           |
         host0       host1       host2       host3        each by its NICs

    GPU 0 of host 0 reaches GPU 0 of host 2 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > switch0 > switch1 > switch2 > host2/nic0 > ...``, or backwards.
    """
    builder = FabricBuilder()
    one = host.Params(
        **{entry.name: getattr(params, entry.name) for entry in fields(host.Params)}
    )
    for at in range(params.hosts):
        builder.node(f"switch{at}", "leaf")
        for nic in host.add_host(builder, one, f"host{at}", f"host{at}/"):
            builder.link(nic, f"switch{at}", "nic", params.nic)
    for at in range(params.hosts if params.hosts > 2 else params.hosts - 1):
        builder.link(
            f"switch{at}", f"switch{(at + 1) % params.hosts}", "cable", params.cable
        )
    return builder.finish("ring-of-hosts", params.gpu, "ring_of_hosts")
