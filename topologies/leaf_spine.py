"""Leaf-spine: hosts under leaf switches, and the leaves joined by one spine link each."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import add_row, slot, too_few

SPINE = LinkSpec(
    Quantity(48e9, "guess", "as the NIC's port"),
    Quantity(1e-6, "guess", "order of magnitude of a switch hop"),
    raw=Quantity(50e9, "guess", "400 Gbit/s"),
)


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

    hosts: int = 4
    leaves: int = 2
    spine: LinkSpec = SPINE

    def __post_init__(self) -> None:
        super().__post_init__()
        mistakes = too_few("leaf_spine", self, {"hosts": 2, "leaves": 2, "nics": 1})
        if self.hosts % max(1, self.leaves):
            mistakes.append(
                Mistake(
                    "leaf_spine",
                    "hosts",
                    str(self.hosts),
                    f"a multiple of leaves = {self.leaves}",
                )
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
    r"""Hosts under two or more leaves.

    ::

                 spine                  two leaves: one link between them; more: a spine switch that joins them all
               /       \
           leaf0       leaf1
           /   \       /   \
       host0  host1  host2  host3       each by its NICs

    GPU 0 of host 0 reaches GPU 0 of host 3 over
    ``host0/gpu0 > host0/cpu0 > host0/nic0 > leaf0 > leaf1 > host3/nic0 > host3/cpu0 > host3/gpu0``.

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``leaf0``, ...; links of kind ``nic`` and
        ``spine``.

    Raises
    ------
    InputError
        If a count is too small or hosts do not divide over the leaves.
    """
    builder = FabricBuilder()
    leaves = add_row(builder, "leaf", params.leaves)
    if params.leaves == 2:
        builder.link(leaves[0], leaves[1], "spine", params.spine)
    else:
        builder.node("spine0", "spine")
        for leaf in leaves:
            builder.link(leaf, "spine0", "spine", params.spine)
    for number in range(params.hosts):
        leaf = slot(leaves, number, params.hosts)
        for nic in host.add_host(builder, params, f"host{number}", f"host{number}/"):
            builder.link(nic, leaf, "nic", params.nic)
    return builder.finish("leaf-spine", params.gpu, "leaf_spine")
