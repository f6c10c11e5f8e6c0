"""The storage fabric: storage servers on a network of their own, and the hosts' ports to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import add_row

_RA = "NVIDIA DGX SuperPOD reference architecture, DGX H100 (RA-11333-001)"


PORT = LinkSpec(
    Quantity(
        40e9,
        "datasheet",
        f"{_RA}, storage architecture: a network maximum of 80 GB/s per node, over two ports",
    ),
    Quantity(1e-6, "guess", "order of magnitude of an InfiniBand hop with its adapter"),
    raw=Quantity(
        50e9, "datasheet", f"{_RA}, storage fabric: MQM9700, 400 Gbit/s per port"
    ),
)
SERVER = LinkSpec(
    Quantity(
        15.5e9,
        "datasheet",
        f"{_RA}, table 6, best: 62 GB/s written per unit; over four servers",
    ),
    Quantity(
        100e-6, "guess", "order of magnitude of a request to a parallel file system"
    ),
    raw=Quantity(50e9, "guess", "one port of 400 Gbit/s"),
    upstream=Quantity(
        31.25e9,
        "datasheet",
        f"{_RA}, table 6, best: 125 GB/s read per unit; over four servers",
    ),
)


@dataclass(frozen=True)
class Storage:
    """What is built for every unit of hosts.

    Attributes
    ----------
    servers
        Storage servers for each unit.
    ports
        Of each host, the i-th under the unit's i-th storage leaf; dealt out over the host's CPUs.
    spines
        Storage spines over the leaves of all units.
    cpus
        Sockets of a host, ``host0/cpu0`` and so on.
    hosts_per_unit
        Hosts of a full unit: what its switches are cabled for.
    slot, port, server
        One PCIe slot of a host, one cable of the network, and what one server takes (bandwidth) and gives (upstream).
    blocking
        Host ports of a storage leaf for three cables up: 4 lets three quarters of them up at once.
    """

    servers: int
    ports: int
    spines: int
    cpus: int
    hosts_per_unit: int
    slot: LinkSpec
    port: LinkSpec
    server: LinkSpec
    blocking: int = 4

    @property
    def cables_up(self) -> int:
        """From one of the hosts' leaves to one spine."""
        return max(1, self.hosts_per_unit * 3 // self.blocking // self.spines)

    @property
    def server_cables(self) -> int:
        """From the servers' leaf to one spine."""
        return max(1, self.servers // self.spines)


def add(
    builder: FabricBuilder, units: Sequence[Sequence[str]], storage: Storage
) -> None:
    r"""Join the hosts of every unit (`units` has their names) to storage servers.

    ::

        storage0 ... storage3                    servers of unit 0
            \          /
         unit0/storage_leaf2                     as many cables up as servers
             |   |   |
        storage_spine0 ... storage_spine3        three cables up for four hosts
             |   |   |
        unit0/storage_leaf0, unit0/storage_leaf1
             |                  |
        host0/storage_nic0, host0/storage_nic1   under cpu0, cpu1

    Host memory of host 0 writes over ``host0/memory0 > host0/cpu0 > host0/storage_nic0 > unit0/storage_leaf0 >
    storage_spine0 > unit0/storage_leaf2 > storage0``.
    """
    spines = add_row(builder, "storage_spine", storage.spines)
    for unit, hosts in enumerate(units):
        for rail in range(storage.ports):
            _add_ports(builder, hosts, rail, f"unit{unit}/", spines, storage)
        _add_servers(builder, unit, spines, storage)


def _add_ports(
    builder: FabricBuilder,
    hosts: Sequence[str],
    rail: int,
    prefix: str,
    spines: Sequence[str],
    storage: Storage,
) -> None:
    """A storage leaf of one unit, with the port number `rail` of each of its hosts."""
    leaf = builder.node(f"{prefix}storage_leaf{rail}", "storage_leaf")
    nics = [
        builder.node(f"{host}/storage_nic{rail}", "storage_nic", host) for host in hosts
    ]
    socket = rail * storage.cpus // storage.ports
    sockets = [f"{host}/cpu{socket}" for host in hosts]
    builder.cables(sockets, nics, "pcie", storage.slot)
    builder.cables(nics, [leaf] * len(nics), "storage", storage.port)
    leaves = [leaf] * len(spines)
    builder.cables(leaves, spines, "storage", storage.port, storage.cables_up)


def _add_servers(
    builder: FabricBuilder, unit: int, spines: Sequence[str], storage: Storage
) -> None:
    """The storage servers of one unit, under a leaf of their own."""
    leaf = builder.node(f"unit{unit}/storage_leaf{storage.ports}", "storage_leaf")
    leaves = [leaf] * len(spines)
    builder.cables(spines, leaves, "storage", storage.port, storage.server_cables)
    first = unit * storage.servers
    for number in range(first, first + storage.servers):
        server = builder.node(f"storage{number}", "storage")
        builder.link(leaf, server, "server", storage.server)
