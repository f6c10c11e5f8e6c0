"""The storage fabric: storage servers on a network of their own, and the hosts' ports to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topologies.core.quantity import LinkSpec, Quantity
from topologies.fabric.builder import FabricBuilder

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
    """How much of it a unit of hosts has.

    Attributes
    ----------
    servers
        Storage servers for each unit.
    ports
        Of each host, the i-th under the unit's i-th storage leaf; dealt out over the host's CPUs.
    spines
        Storage spines over the leaves of all units.
    blocking
        Host ports of a storage leaf for three cables up: 4 lets three quarters of them up at once.
    """

    servers: int
    ports: int
    spines: int
    blocking: int = 4


def add(
    builder: FabricBuilder, units: Sequence[Sequence[str]], cpus: int, sizes: Storage, full: int,
    slot: LinkSpec, port: LinkSpec, server: LinkSpec,
) -> None:  # fmt: skip
    r"""Join the hosts of every unit to storage servers.

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

    Parameters
    ----------
    units
        Names of the hosts of each unit.
    cpus
        Sockets of a host, ``host0/cpu0`` and so on.
    full
        Hosts of a full unit: what its switches are cabled for.
    slot, port, server
        One PCIe slot of a host, one cable of the network, and what one server takes (bandwidth) and gives (upstream).
    """
    spines = [
        builder.node(f"storage_spine{at}", "storage_spine")
        for at in range(sizes.spines)
    ]
    up = max(1, full * 3 // sizes.blocking // sizes.spines)
    for unit, hosts in enumerate(units):
        for rail in range(sizes.ports):
            leaf = builder.node(f"unit{unit}/storage_leaf{rail}", "storage_leaf")
            nics = [
                builder.node(f"{host}/storage_nic{rail}", "storage_nic", host)
                for host in hosts
            ]
            sockets = [f"{host}/cpu{rail * cpus // sizes.ports}" for host in hosts]
            builder.cables(sockets, nics, "pcie", slot)
            builder.cables(nics, [leaf] * len(nics), "storage", port)
            builder.cables([leaf] * len(spines), spines, "storage", port, up)
        devices = builder.node(f"unit{unit}/storage_leaf{sizes.ports}", "storage_leaf")
        builder.cables(
            spines,
            [devices] * len(spines),
            "storage",
            port,
            max(1, sizes.servers // sizes.spines),
        )
        for at in range(sizes.servers):
            builder.link(
                devices,
                builder.node(f"storage{unit * sizes.servers + at}", "storage"),
                "server",
                server,
            )
