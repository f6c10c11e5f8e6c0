"""A communicator: ranks in the order in which NCCL would string them, and what connects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.collectives.nccl.ways import TYPES
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import nics, paths, processes, reach, transport
from prestep.sim.collectives.wires.network import Network
from prestep.sim.errors import InputError, Mistake, unknown


@dataclass(frozen=True, eq=False)
class Group:
    """Ranks by host: NCCL's nodes, the GPUs that reach each other without the network. A rack of NVL72 is one.

    Attributes
    ----------
    ranks : tuple of str
        All GPUs, hosts one after the other by their lowest rank, in each in the fabric's order.
    hosts : tuple of tuple of str
        GPUs of each host.
    local, remote : float
        Bytes/s of the slowest GPU's NVLinks (or best local way) and of the slowest way between hosts (inf if one host).
    local_latency, remote_latency : float
        Seconds of one hop's route inside a host, and between hosts.
    local_wire : float
        Bytes/s of that slowest way inside a host as the datasheet has it: what NCCL's search counts on.
    local_kind, remote_kind : str
        Kinds of those slowest links ("nvlink", "nic"); "" where there is none.
    inside, outside : str
        How bytes travel in a host ("auto", "shm" through its memory, or the type of way up to which GPUs are peers) and
        between hosts ("auto", "staged" in their memory, or "net" where hosts are pretended): see
        `prestep.sim.collectives.wires.transport`.
    farthest : int or None
        Type of the farthest way between peers, where NCCL_P2P_LEVEL says it.
    net : Net
        What NCCL sees of the network.
    network : Network
        What the cluster file says that NCCL gets out of it.
    racks : bool
        Whether a host is several machines, which share NVSwitches.
    """

    ranks: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...]
    local: float
    remote: float
    local_wire: float
    local_latency: float
    remote_latency: float
    local_kind: str
    remote_kind: str
    inside: str = "auto"
    outside: str = "auto"
    net: nics.Net = nics.NO_NET
    network: Network = field(default_factory=Network)
    farthest: int | None = None
    racks: bool = False

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def per_node(self) -> float:
        return self.n / self.nodes

    @cached_property
    def first_of_size(self) -> dict[int, tuple[str, ...]]:
        """The first host of each number of GPUs, in the order of the hosts."""
        first: dict[int, tuple[str, ...]] = {}
        for host in self.hosts:
            first.setdefault(len(host), host)
        return first

    @cached_property
    def smallest(self) -> int:
        """GPUs of the host that has fewest."""
        return min(self.first_of_size)

    @cached_property
    def largest(self) -> int:
        """GPUs of the host that has most."""
        return max(self.first_of_size)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What decides which way bytes go between the ranks: equal on fabrics that differ in speeds alone."""
        return self.ranks, self.hosts, self.inside, self.outside

    @property
    def through_memory(self) -> bool:
        """Whether bytes may pass a host's memory, inside a host or on their way to another."""
        return self.inside != "auto" or self.outside == reach.STAGED

    def expand(self, fabric: Any, flows: list[transport.Flow]) -> list[transport.Flow]:
        """Flows between ranks as flows between the stations that they pass."""
        if self.inside == self.outside:
            return transport.expand(fabric, flows, self.inside)
        place = {gpu: h for h, host in enumerate(self.hosts) for gpu in host}
        near = [flow for flow in flows if place[flow[0]] == place[flow[1]]]
        far = [flow for flow in flows if place[flow[0]] != place[flow[1]]]
        return transport.expand(fabric, near, self.inside) + transport.expand(
            fabric, far, self.outside
        )

    def gather(
        self, fabric: Any, src: np.ndarray, dst: np.ndarray, each: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Links and bytes on each of flows between ranks (positions), by the stations that they pass."""
        direct = not {self.inside, self.outside} & {*transport.STOPS}
        if direct and len(src) > paths.MANY:
            return paths.carried(fabric, src, dst, each)
        names = fabric.nodes.names
        ends = zip(src.tolist(), dst.tolist(), each.tolist(), strict=True)
        flows = [(names[a], names[b], amount) for a, b, amount in ends]
        return paths.gather(fabric, self.expand(fabric, flows))


def group_of(fabric: Any, ranks: Sequence[str], settings: Nccl | None = None) -> Group:
    """The group of `ranks`; of their order only the one in which hosts first appear matters.

    Raises
    ------
    InputError
        If a rank is not a GPU of the fabric, or named twice.
    """
    index = paths.index_of(fabric)
    settings = settings or Nccl()
    how = (
        settings.hostid,
        settings.p2p_disable,
        settings.p2p_level,
        settings.net_gdr_level,
        settings.shm_disable,
        settings.net_speed,
    )
    key = (tuple(ranks), how)
    group: Group | None = index.groups.get(key)
    if group is None:
        _check(fabric, index, key[0])
        layout = _layout(fabric, *key, settings)
        ordered = (layout.ranks, how)
        if ordered not in index.groups:
            index.groups[ordered] = _build(fabric, layout, settings)
        group = index.groups[key] = index.groups[ordered]
    return group


class _Layout(NamedTuple):
    """Ranks in NCCL's order and by its nodes, how many machines these are on, and which ranks are neighbours."""

    ranks: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...]
    machines: int
    racks: bool
    near: tuple[tuple[str, str], ...]
    across: tuple[tuple[str, str], ...]


def _layout(
    fabric: Any, ranks: tuple[str, ...], how: tuple[Any, ...], settings: Nccl
) -> _Layout:
    """Where ranks are, found once for all fabrics with the same routes."""
    key = ("layout", ranks, how, fabric.cluster_facts.amd_cpu)
    return paths.once_routed(fabric, key, lambda: _laid_out(fabric, ranks, settings))


def _laid_out(fabric: Any, given: tuple[str, ...], settings: Nccl) -> _Layout:
    ranks = _ordered(fabric, given)
    hosts = _hosts(fabric, ranks, settings)
    machines = fabric.hosts_of(host[0] for host in hosts)
    racks = machines != fabric.hosts_of(host[-1] for host in hosts)
    near, across = _neighbours(hosts), _across(hosts)
    return _Layout(ranks, hosts, len({*machines}), racks, tuple(near), tuple(across))


def _ordered(fabric: Any, ranks: tuple[str, ...]) -> tuple[str, ...]:
    """Hosts by their lowest rank, as NCCL numbers its nodes (src/init.cc); in a host GPUs in the fabric's order."""
    domains, order = paths.domains(fabric), paths.index_of(fabric).order
    first: dict[int, int] = {}
    for rank in ranks:
        first.setdefault(domains[rank], len(first))
    return tuple(sorted(ranks, key=lambda rank: (first[domains[rank]], order[rank])))


def _check(fabric: Any, index: paths.Index, ranks: tuple[str, ...]) -> None:
    mistakes = [
        unknown(fabric.name, "ranks", rank, index.order)
        for rank in ranks
        if rank not in index.order
    ]
    if len(set(ranks)) < len(ranks):
        twice = [rank for rank in dict.fromkeys(ranks) if ranks.count(rank) > 1]
        mistakes += [
            Mistake(fabric.name, "ranks", f"{rank} twice", "every GPU once")
            for rank in twice
        ]
    if not ranks:
        mistakes.append(Mistake(fabric.name, "ranks", "no GPU", "at least one"))
    if mistakes:
        raise InputError(mistakes)


def _hosts(
    fabric: Any, ranks: tuple[str, ...], settings: Nccl
) -> tuple[tuple[str, ...], ...]:
    """Ranks by NCCL's nodes: NVLink domains, or what the settings pretend."""
    domains = paths.domains(fabric)
    by_host: dict[Any, list[str]] = {}
    for at, rank in enumerate(ranks):
        place: Any = domains[rank]
        if settings.peers_off:
            # No P2P: through the memory of the machine, or each GPU a host of its own.
            place = rank if settings.shm_disable else fabric.host_of(rank)
        elif settings.shm_disable:
            place = _first_peer(fabric, ranks[: at + 1], settings)
        if settings.hostid is not None:
            place = (place, at // settings.hostid)
        by_host.setdefault(place, []).append(rank)
    return tuple(tuple(gpus) for gpus in by_host.values())


def _first_peer(fabric: Any, ranks: tuple[str, ...], settings: Nccl) -> Any:
    """Whom the last of some ranks reaches without memory: NCCL's node (src/graph/topo.cc, ncclTopoTrimSystem)."""
    domains, rank = paths.domains(fabric), ranks[-1]
    here = [other for other in ranks if domains[other] == domains[rank]]
    farthest = reach.limit(settings, fabric, len(here))
    near = (one for one in here if reach.distance(fabric, one, rank) <= farthest)
    return domains[rank], next(near, rank)


def _build(fabric: Any, layout: _Layout, settings: Nccl) -> Group:
    ranks, hosts = layout.ranks, layout.hosts
    inside = reach.route(fabric, hosts, settings)
    # Hosts that are pretended (NCCL_HOSTID) lie on one machine, and meet over its NICs.
    outside = (
        "net" if layout.machines < len(hosts) else reach.out(fabric, hosts, settings)
    )
    memory = inside != "auto" and len(hosts) < len(ranks)
    level = settings.p2p_level
    local = _slowest(fabric, layout.near, inside)
    remote = _slowest(fabric, layout.across, outside)
    return Group(
        ranks,
        hosts,
        local=local.bandwidth,
        remote=remote.bandwidth,
        local_wire=local.wire,
        local_latency=local.latency,
        remote_latency=remote.latency + _crossings(fabric, hosts),
        local_kind=local.kind,
        remote_kind=remote.kind,
        inside=inside,
        outside=outside,
        net=nics.network(fabric, hosts, outside, settings.net_speed),
        network=Network(fabric.cluster_facts, memory),
        farthest=None if level is None else TYPES.index(level),
        racks=layout.racks,
    )


def _crossings(fabric: Any, hosts: tuple[tuple[str, ...], ...]) -> float:
    """Seconds that proxies on the wrong socket add to a step between hosts; of the farthest host."""
    if len(hosts) < 2 or fabric.numa == processes.LOCAL:
        return 0.0
    return max(processes.crossing(fabric, host[0]) for host in hosts)


def _neighbours(hosts: tuple[tuple[str, ...], ...]) -> list[tuple[str, str]]:
    """Each GPU with the next one of its host, round and round."""
    return [
        pair
        for host in hosts
        if len(host) > 1
        for pair in zip(host, host[1:] + host[:1], strict=True)
    ]


def _across(hosts: tuple[tuple[str, ...], ...]) -> list[tuple[str, str]]:
    """GPUs of each host with those of the next one; the smaller host's are taken again."""
    if len(hosts) < 2:
        return []
    return [
        (a[k % len(a)], b[k % len(b)])
        for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True)
        for k in range(max(len(a), len(b)))
    ]


class _Slowest(NamedTuple):
    """Bandwidth, wire and kind of the narrowest of several ways, and the longest latency; defaults: of none."""

    bandwidth: float = float("inf")
    wire: float = float("inf")
    kind: str = ""
    latency: float = 0.0


def _slowest(fabric: Any, pairs: tuple[tuple[str, str], ...], route: str) -> _Slowest:
    number, links, share = paths.once_routed(
        fabric,
        ("ways", pairs, route),
        lambda: transport.ways(fabric, [*pairs], route),
    )
    if not len(links):
        return _Slowest()
    delay = fabric.links.latency[links] * share
    latency = float(np.bincount(number, weights=delay).max())
    width = fabric.links.bandwidth[links] / share
    narrowest = int(np.argmin(width))
    if width[narrowest] == float("inf"):
        return _Slowest(latency=latency)
    wire = float(fabric.links.raw[links[narrowest]] / share[narrowest])
    kind = str(fabric.links.kind[links[narrowest]])
    return _Slowest(float(width[narrowest]), wire, kind, latency)
