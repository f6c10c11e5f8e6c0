"""Rail-optimised fat tree: NIC i of every host in a group hangs under leaf switch i, and spines join the leaves."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    CABLE,
    add_rails,
    add_spines,
    by_units,
    too_few,
)


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
        Spine switches; every leaf has the same number of cables to each.
    oversubscription
        Ports down of a leaf for one cable up: 1 is full bisection, 4 lets a quarter of the bytes up at once.
    spine
        One cable between a leaf and a spine.
    """

    hosts: int = 32
    hosts_per_group: int = 32
    spines: int = 8
    oversubscription: int = 1
    spine: LinkSpec = CABLE

    @property
    def cables(self) -> int:
        """From one leaf to one spine."""
        return self.hosts_per_group // self.oversubscription // self.spines

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {
            "hosts": 1,
            "hosts_per_group": 1,
            "spines": 1,
            "oversubscription": 1,
            "nics": 1,
        }
        mistakes = too_few("rail_optimized", self, least)
        if not mistakes and self.hosts_per_group % (
            self.oversubscription * self.spines
        ):
            found = f"{self.hosts_per_group} with oversubscription = {self.oversubscription}, spines = {self.spines}"
            expected = (
                "a multiple of oversubscription * spines: equal cables to every spine"
            )
            mistakes.append(
                Mistake("rail_optimized", "hosts_per_group", found, expected)
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    NVIDIA DGX SuperPOD reference architecture, DGX H100, compute fabric: rail-optimised full fat tree.
    """
    builder = FabricBuilder()
    nics = host.add_hosts(builder, params, params.hosts)
    leaves = []
    for at, members in enumerate(by_units(nics, params.hosts_per_group)):
        leaves += add_rails(builder, f"group{at}/", members, params.nic)
    add_spines(builder, leaves, params.spines, params.spine, params.cables)
    return builder.finish("rail-optimized", params.gpu, "rail_optimized")
