"""Fat trees of two or three tiers: whole hosts under a leaf, with any whole oversubscription at each tier."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    CABLE,
    add_below,
    add_mesh,
    add_row,
    add_spines,
    by_units,
    too_few,
)


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

    hosts: int = 8
    hosts_per_leaf: int = 4
    leaves_per_pod: int = 0
    spines: int = 4
    cores: int = 4
    oversubscription: int = 1
    core_oversubscription: int = 1
    spine: LinkSpec = CABLE
    core: LinkSpec = CABLE

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

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {
            "hosts": 1,
            "hosts_per_leaf": 1,
            "leaves_per_pod": 0,
            "spines": 1,
            "cores": 1,
            "nics": 1,
        }
        least |= {"oversubscription": 1, "core_oversubscription": 1}
        mistakes = too_few("fat_tree", self, least)
        if not mistakes:
            mistakes = self._uneven()
        if mistakes:
            raise InputError(mistakes)

    def _uneven(self) -> list[Mistake]:
        """Cables that do not divide over the switches above."""
        down = self.hosts_per_leaf * self.nics
        if down % (self.oversubscription * self.spines):
            found = f"{self.spines} with {down} ports down and oversubscription = {self.oversubscription}"
            return [
                Mistake(
                    "fat_tree",
                    "spines",
                    found,
                    "equal cables: a divisor of ports down / oversubscription",
                )
            ]
        down = self.leaves_per_pod * self.cables
        if down % (self.core_oversubscription * self.cores):
            found = f"{self.cores} with {down} ports down and core_oversubscription = {self.core_oversubscription}"
            return [
                Mistake(
                    "fat_tree",
                    "cores",
                    found,
                    "equal cables: a divisor of ports down / core_oversubscription",
                )
            ]
        return []


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    builder = FabricBuilder()
    nics = host.add_hosts(builder, params, params.hosts)
    leaves = add_row(builder, "leaf", -(-params.hosts // params.hosts_per_leaf))
    add_below(builder, nics, leaves, params.hosts_per_leaf, params.nic)
    pods = by_units(leaves, params.leaves_per_pod or len(leaves))
    prefixes = [f"pod{at}/" if params.leaves_per_pod else "" for at in range(len(pods))]
    spines = [
        add_spines(builder, pod, params.spines, params.spine, params.cables, prefix)
        for pod, prefix in zip(pods, prefixes, strict=True)
    ]
    if params.leaves_per_pod:
        _add_core(builder, params, spines)
    return builder.finish("fat-tree", params.gpu, "fat_tree")


def _add_core(builder: FabricBuilder, params: Params, pods: list[list[str]]) -> None:
    for plane in range(params.spines):
        cores = add_row(builder, "core", params.cores, first=plane * params.cores)
        add_mesh(
            builder,
            [spines[plane] for spines in pods],
            cores,
            "core",
            params.core,
            params.core_cables,
        )
