"""DGX SuperPOD: scalable units of 32 hosts under eight leaves, joined by spines, and beyond eight units by a core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring

LINKS = wiring.default_links("superpod")
#: Host ports of a storage leaf, and cables up for them: three quarters of the bytes fit at once.
BLOCKING = (4, 3)


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
        Of each unit, of each host, and in all: the storage fabric beside the compute fabric. No servers: none.
    spine, core
        One cable between a leaf and a spine, and between a spine and a core switch.
    storage, server
        One cable of the storage fabric, and what one server takes (bandwidth) and gives (upstream).
    """

    hosts: int = wiring.count(32)
    hosts_per_unit: int = wiring.count(32)
    ports: int = wiring.count(64, least=2)
    nics: int = wiring.count(8)
    storage_servers: int = wiring.count(0, least=0)
    storage_ports: int = wiring.count(2)
    storage_spines: int = wiring.count(4)
    spine: LinkSpec = wiring.CABLE
    core: LinkSpec = wiring.CABLE
    storage: LinkSpec = LINKS["storage"]
    server: LinkSpec = LINKS["server"]

    @property
    def units(self) -> int:
        """Scalable units begun."""
        return -(-self.hosts // self.hosts_per_unit)

    @property
    def wired(self) -> int:
        """Units that the switches are bought for: the next power of two, so that cables divide evenly."""
        return 1 << (self.units - 1).bit_length()

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        """What the number of ports does not allow."""
        half = self.hosts_per_unit
        if half * 2 != self.ports:
            expected = (
                f"{half * 2}: a leaf has as many cables up as hosts_per_unit = {half}"
            )
            yield "ports", str(self.ports), expected
        for key in ("ports", "nics"):
            if getattr(self, key).bit_count() != 1:
                yield key, str(getattr(self, key)), "a power of two: equal cables"
        if self.units > half:
            most = f"at most {half**2}: three tiers of switches with {self.ports} ports"
            yield "hosts", str(self.hosts), most


def build(params: Params) -> nx.MultiDiGraph[str]:
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

    Returns
    -------
    networkx.MultiDiGraph
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
    graph = wiring.new_graph("superpod", params.gpu, "superpod")
    pattern = host.pattern(params)
    nics = wiring.add_hosts(graph, "host", pattern, copies=params.hosts)
    units = wiring.by_units(range(params.hosts), params.hosts_per_unit)
    for unit, hosts in enumerate(units):
        wiring.add_rails(graph, f"unit{unit}/leaf", hosts, nics, params.nic)
    if params.wired * params.nics <= params.ports:
        _add_spines(graph, params)
    else:
        _add_core(graph, params)
    if params.storage_servers:
        _add_storage(graph, params, units)
    return graph


def _add_spines(graph: nx.MultiDiGraph[str], params: Params) -> None:
    """Two tiers: all leaves under all spines, whose ports all look down."""
    # One rail and one unit would need half a switch.
    down = params.wired * params.nics * params.hosts_per_unit
    spines = max(1, down // params.ports)
    graph.add_node("spine", kind="spine", copies=spines)
    cables = params.hosts_per_unit // spines
    for unit in range(params.units):
        wiring.join(graph, f"unit{unit}/leaf", "spine", "spine", params.spine, cables)


def _add_core(graph: nx.MultiDiGraph[str], params: Params) -> None:
    """Three tiers: the leaves of one rail under spines of their own, and the spines of all rails under the core."""
    half = params.ports // 2
    cables = half // params.wired
    per_rail = half // cables
    spines = range(per_rail * params.nics)
    # Half of a spine's ports look up, one to each core of its group.
    groups = per_rail * params.nics // params.ports
    graph.add_node("spine", kind="spine", copies=len(spines))
    graph.add_node("core", kind="core", copies=groups * half)
    for rail, own in enumerate(wiring.by_units(spines, per_rail)):
        pairs = wiring.every([rail], own)
        for unit in range(params.units):
            leaf = f"unit{unit}/leaf"
            wiring.join(
                graph, leaf, "spine", "spine", params.spine, cables, pairs=pairs
            )
    cores = range(groups * half)
    pairs = [
        (one, core)
        for one in spines
        for core in cores[one % per_rail % groups :: groups]
    ]
    wiring.join(graph, "spine", "core", "core", params.core, pairs=pairs)


def _add_storage(
    graph: nx.MultiDiGraph[str], params: Params, units: list[range]
) -> None:
    r"""Joins the hosts of every unit to storage servers.

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
    spines, servers = params.storage_spines, params.storage_servers
    ports, up = BLOCKING
    cables_up = max(1, params.hosts_per_unit * up // ports // spines)
    graph.add_node("storage_spine", kind="storage_spine", copies=spines)
    for unit, hosts in enumerate(units):
        for port in range(params.storage_ports):
            leaf = f"unit{unit}/storage_leaf{port}"
            graph.add_node(leaf, kind="storage_leaf")
            _add_storage_ports(graph, params, hosts, port, leaf)
            wiring.join(
                graph, leaf, "storage_spine", "storage", params.storage, cables_up
            )
        # The servers are under a leaf of their own.
        leaf = f"unit{unit}/storage_leaf{params.storage_ports}"
        graph.add_node(leaf, kind="storage_leaf")
        cables = max(1, servers // spines)
        wiring.join(graph, "storage_spine", leaf, "storage", params.storage, cables)
        for number in range(unit * servers, (unit + 1) * servers):
            graph.add_node(f"storage{number}", kind="storage")
            wiring.join(graph, leaf, f"storage{number}", "server", params.server)


def _add_storage_ports(
    graph: nx.MultiDiGraph[str], params: Params, hosts: range, port: int, leaf: str
) -> None:
    """Adds the port of one number to some hosts, under a CPU of each and a storage leaf."""
    cpu = f"cpu{port * params.sockets // params.storage_ports}"
    nics = [f"host{number}/storage_nic{port}" for number in hosts]
    for number, nic in zip(hosts, nics, strict=True):
        graph.add_node(nic, kind="storage_nic", host=f"host{number}")
        pairs = [(number, 0)]
        wiring.join(
            graph, "host", nic, "pcie", params.pcie, tail_ports=[cpu], pairs=pairs
        )
    for nic in nics:
        wiring.join(graph, nic, leaf, "storage", params.storage)
