"""DGX SuperPOD: scalable units of 32 hosts under eight leaves, joined by spines, and beyond eight units by a core."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric import storage as storage_fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    CABLE,
    add_mesh,
    add_rails,
    add_row,
    add_spines,
    by_units,
    too_few,
)


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the reference architecture's switches.

    Attributes
    ----------
    hosts
        How many; units are filled one after the other, the last one may be smaller.
    hosts_per_unit
        Hosts of one scalable unit: ports down, and up, of one leaf.
    ports
        Ports of every switch.
    storage_servers, storage_ports, storage_spines
        Of each unit, of each host, and in all: the storage fabric beside the compute fabric
        (`prestep.topologies.fabric.storage`). No servers: no storage fabric.
    spine, core
        One cable between a leaf and a spine, and between a spine and a core switch.
    storage, server
        One cable of the storage fabric, and what one server takes (bandwidth) and gives (upstream).
    """

    hosts: int = 32
    hosts_per_unit: int = 32
    ports: int = 64
    storage_servers: int = 0
    storage_ports: int = 2
    storage_spines: int = 4
    spine: LinkSpec = CABLE
    core: LinkSpec = CABLE
    storage: LinkSpec = storage_fabric.PORT
    server: LinkSpec = storage_fabric.SERVER

    @property
    def units(self) -> int:
        """Scalable units begun."""
        return -(-self.hosts // self.hosts_per_unit)

    @property
    def wired(self) -> int:
        """Units that the switches are bought for: the next power of two, so that cables divide evenly."""
        return 1 << (self.units - 1).bit_length()

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {
            "hosts": 1,
            "hosts_per_unit": 1,
            "ports": 2,
            "nics": 1,
            "storage_servers": 0,
        }
        least |= {"storage_ports": 1, "storage_spines": 1}
        mistakes = too_few("superpod", self, least)
        if not mistakes:
            mistakes = self._misfits()
        if mistakes:
            raise InputError(mistakes)

    def _misfits(self) -> list[Mistake]:
        """What the number of ports does not allow."""
        mistakes = []
        if self.hosts_per_unit * 2 != self.ports:
            expected = (
                f"{self.hosts_per_unit * 2}: "
                f"a leaf has as many cables up as hosts_per_unit = {self.hosts_per_unit}"
            )
            mistakes.append(Mistake("superpod", "ports", str(self.ports), expected))
        for key in ("ports", "nics"):
            if getattr(self, key).bit_count() != 1:
                mistakes.append(
                    Mistake(
                        "superpod",
                        key,
                        str(getattr(self, key)),
                        "a power of two: equal cables",
                    )
                )
        if self.units > self.hosts_per_unit:
            most = f"at most {self.hosts_per_unit**2}: three tiers of switches with {self.ports} ports"
            mistakes.append(Mistake("superpod", "hosts", str(self.hosts), most))
        return mistakes


def build(params: Params) -> Fabric:
    r"""Scalable units under leaves, spines over the leaves, and a core where the spines' ports run out.

    ::

        core0 ... core63                            beyond 8 units: spine j of a rail to every second core
          |         |
        spine0 ... spine15     rail 0: spine0-15    up to 8 units every leaf to every spine; beyond, 16 spines a rail
          |    \  /   |
        unit0/leaf0 ... unit0/leaf7   unit1/leaf0 ...         32 cables up from every leaf
          |                 |
         nic0              nic7      of each of the unit's 32 hosts

    GPU 0 of host 0 reaches GPU 0 of host 32 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > unit0/leaf0 > spine0 > unit1/leaf0 > host32/nic0 >
    host32/pcieswitch0 > host32/gpu0``, and equally over the other spines.

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
        128 hosts (1,024 GPUs): 32 leaves, 16 spines; 256: 64 leaves, 32 spines; 512 (4,096 GPUs): 128 leaves,
        128 spines, 64 core switches. Nodes as `prestep.topologies.host` names them, prefixed ``host0/``;
        ``unit0/leaf0``,
        ``spine0``, ``core0``; links of kind ``nic``, ``spine``, ``core``; bandwidths in bytes/s, latencies in s.
        Full bisection. With storage servers also ``storage_spine0``, ``unit0/storage_leaf0``, ``storage0`` and
        ``host0/storage_nic0``. In between, there are as many switches as for the next power of two of units.

    Raises
    ------
    InputError
        If a count is too small, or the switches have too few ports.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture, DGX H100: compute fabric, numbers of leaves, spines and cores per
    number of units. Which spine goes to which core is a guess; its bandwidth (full bisection) is not.
    """
    builder = FabricBuilder()
    nics = host.add_hosts(builder, params, params.hosts)
    units = [
        add_rails(builder, f"unit{at}/", members, params.nic)
        for at, members in enumerate(by_units(nics, params.hosts_per_unit))
    ]
    if params.wired * params.nics <= params.ports:
        _add_spines(builder, params, [leaf for unit in units for leaf in unit])
    else:
        _add_core(builder, params, units)
    if params.storage_servers:
        _add_storage(builder, params)
    return builder.finish("superpod", params.gpu, "superpod")


def _add_storage(builder: FabricBuilder, params: Params) -> None:
    """The storage fabric beside the compute fabric."""
    hosts = [f"host{number}" for number in range(params.hosts)]
    units = by_units(hosts, params.hosts_per_unit)
    storage = storage_fabric.Storage(
        servers=params.storage_servers,
        ports=params.storage_ports,
        spines=params.storage_spines,
        cpus=params.sockets,
        hosts_per_unit=params.hosts_per_unit,
        slot=params.pcie,
        port=params.storage,
        server=params.server,
    )
    storage_fabric.add(builder, units, storage)


def _add_spines(builder: FabricBuilder, params: Params, leaves: list[str]) -> None:
    """Two tiers: all leaves under all spines, whose ports all look down."""
    count = params.wired * params.nics * params.hosts_per_unit // params.ports
    # One rail and one unit would need half a switch.
    spines = max(1, count)
    add_spines(builder, leaves, spines, params.spine, params.hosts_per_unit // spines)


def _add_core(builder: FabricBuilder, params: Params, units: list[list[str]]) -> None:
    """Three tiers: the leaves of one rail under spines of their own, and the spines of all rails under the core."""
    half = params.ports // 2
    cables = half // params.wired
    per_rail = half // cables
    # Half of a spine's ports look up, one to each core of its group.
    groups = per_rail * params.nics // params.ports
    spines: list[list[str]] = []
    for rail in range(params.nics):
        leaves = [unit[rail] for unit in units]
        spines.append(
            add_spines(
                builder, leaves, per_rail, params.spine, cables, first=rail * per_rail
            )
        )
    cores = add_row(builder, "core", groups * half)
    for rail_spines in spines:
        for at, spine in enumerate(rail_spines):
            add_mesh(
                builder, [spine], cores[at % groups :: groups], "core", params.core
            )
