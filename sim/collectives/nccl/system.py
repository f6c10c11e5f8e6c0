"""One host as NCCL sees it: GPUs, PCIe switches, CPUs, NVSwitches and networks, and the ways between them.

Speeds are NCCL's own for a kind of link (GB/s: src/graph/topo.h and topo.cc), ways its breadth-first search with its
types of distance (src/graph/paths.cc): LOC, NVL, NVB (over a GPU), C2C, PIX (one PCIe switch), PXB (several), P2C,
PXN (a GPU's NIC over NVLink), PHB (over a CPU), SYS (between sockets). A "host" is what needs no network: a rack of
NVL72 is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.limits import Limits
from prestep.sim.collectives.nccl.ways import (
    C2C,
    DIS,
    LOCAL,
    NET,
    NVL,
    P2C,
    PIX,
    PXB,
    PXN,
    SYS,
    Builder,
    Way,
    joined,
    reversed_bits,
)
from prestep.sim.collectives.wires.nics import PCIE, merged
from prestep.sim.costs.generation import Generation

Ways = tuple[tuple[Way, ...], ...]
Rows = Sequence[Sequence[Way]]
Leaving = tuple[int, int | None, int, float]
# Nodes of a host that lead on: their kind in a fabric, and in NCCL.
BRIDGES = {"cpu": "cpu", "pcieswitch": "pci"}


@dataclass(frozen=True)
class System:
    """One host; two are equal if the search cannot tell them apart.

    Attributes
    ----------
    gpus, nets : int
        GPUs of the communicator on it, and its NICs (none on a communicator of one host).
    room : tuple of int
        MB/s of every directed link.
    speed : tuple of int
        MB/s of every net.
    between, out, back : tuples of tuples of Way
        From GPU to GPU, from GPU to net, from net to GPU.
    up, down : tuples of Way
        From GPU to NVSwitch and back; empty without one.
    nvlinks : tuple of tuple of int
        Links that are NVLinks, of every GPU.
    pcie : tuple of int
        MB/s of every GPU's PCIe slot.
    amd : bool
        Whether its CPUs are AMD's: a way through them costs no more, and two GPUs talk directly over them.
    """

    gpus: int
    nets: int
    room: tuple[int, ...]
    speed: tuple[int, ...]
    between: Ways
    out: Ways
    back: Ways
    up: tuple[Way, ...]
    down: tuple[Way, ...]
    nvlinks: tuple[tuple[int, ...], ...]
    pcie: tuple[int, ...]
    amd: bool

    @cached_property
    def _memory(self) -> dict[tuple[object, ...], dict[Any, Any]]:
        return {}

    def once(self, *key: object) -> dict[Any, Any]:
        """What walks over the host have worked out, under all that it depends on."""
        return self._memory.setdefault(key, {})

    @property
    def most(self) -> int:
        """MB/s of the best way that a channel takes: between GPUs, or out of the host."""
        if self.gpus == 1 and not self.nets:
            return LOCAL
        ways = self.out if self.nets else self.between
        return max((way.speed for row in ways for way in row if way.hops), default=0)

    @property
    def total(self) -> int:
        """MB/s of one GPU's NVLinks, or of its PCIe slot."""
        if self.gpus == 1 and not self.nets:
            return LOCAL
        nvlink = [sum(self.room[i] for i in links) for links in self.nvlinks]
        return max(max(pair) for pair in zip(nvlink, self.pcie, strict=True))

    @cached_property
    def limits(self) -> Limits:
        """What channels can be at best."""
        return Limits.of(self.room, self.between, self.out, self.back)

    @cached_property
    def preferred(self) -> list[list[int]]:
        """Nets that every GPU prefers, one per channel in turn."""
        return [_preferred(self.out, self.back, gpu) for gpu in range(self.gpus)]

    @cached_property
    def owners(self) -> list[int | None]:
        """The GPU whose NIC every net is."""
        return [_owner(self.out, self.back, net) for net in range(self.nets)]


def _preferred(out: Rows, back: Rows, gpu: int) -> list[int]:
    """Nets that a GPU prefers (ncclTopoGetLocalNet)."""
    nets = nearest(out[gpu])
    if not nets:
        return []
    sharing = max(1, len(nearest(back[nets[0]])))
    each = -(-len(nets) // sharing)
    place = gpu % sharing
    first = reversed_bits(place, len(nets)) if len(nets).bit_count() == 1 else place
    return [nets[(first + k) % len(nets)] for k in range(each)]


def _owner(out: Rows, back: Rows, net: int) -> int | None:
    """The GPU whose NIC a net is."""
    near = nearest(back[net])
    return next((gpu for gpu in near if net in _preferred(out, back, gpu)), None)


def nearest(ways: Sequence[Way]) -> list[int]:
    """The fastest, and of those the closest."""
    ranks = [(way.speed, -way.type) for way in ways if way.type < DIS]
    best = max(ranks, default=None)
    return [
        at
        for at, way in enumerate(ways)
        if way.type < DIS and (way.speed, -way.type) == best
    ]


def parts_of(
    fabric: Any, group: Group, host: Sequence[str], kind: Generation, pxn: bool = True
) -> Parts:
    """What one of the group's hosts is made of.

    Parameters
    ----------
    host : sequence of str
        The group's GPUs on it.
    kind : Generation
        Of its GPUs, as the release counts them.
    pxn : bool
        Whether a GPU may use another GPU's NIC over NVLink.
    """
    names = _nodes(fabric, group, host)
    numbers = {name: at for at, name in enumerate(names)}
    return Parts(
        tuple(names.values()),
        tuple(_leaving(fabric, numbers, kind)),
        tuple(numbers[gpu] for gpu in host),
        merged(fabric, host[0]) if "nic" in names.values() else 1,
        group.net.speed / 1e6,
        group.inside == "shm",
        group.farthest,
        pxn and group.outside != "staged",
        bool(fabric.cluster_facts.amd_cpu),
    )


class Parts(NamedTuple):
    """What a host is made of, without names: equal for hosts that are alike, of whatever cluster.

    Attributes
    ----------
    kinds : tuple of str
        Of every node.
    links : tuple
        Ends (None: an NVSwitch), type and MB/s of the links that leave the nodes.
    gpus : tuple of int
        Nodes of the communicator's GPUs.
    together : int
        NICs that count as one.
    speed : float
        MB/s of a net.
    shm, pxn : bool
        Whether GPUs talk through memory, and whether they may use another's NIC.
    farthest : int or None
        As a group has it.
    amd : bool
        Whose CPUs they are.
    """

    kinds: tuple[str, ...]
    links: tuple[Leaving, ...]
    gpus: tuple[int, ...]
    together: int
    speed: float
    shm: bool
    farthest: int | None
    pxn: bool
    amd: bool


def of_parts(parts: Parts) -> System:
    """A host without names."""
    builder = Builder(intel=not parts.amd)
    for kind in parts.kinds:
        builder.node(kind)
    _links(builder, parts.links)
    nets = _nets(builder, parts)
    gpus = [*parts.gpus]
    # One search from every end of a channel finds the ways to it from all other nodes.
    ways = {node: builder.ways(node) for node in (*gpus, *nets)}
    between, out, back = _ways(builder, gpus, nets, ways, parts)
    return System(
        len(gpus),
        len(nets),
        tuple(builder.room),
        tuple(round(parts.speed) for _ in nets),
        between,
        out,
        back,
        *_switched(builder, gpus, ways, parts.shm),
        *_slots(builder, gpus),
        amd=parts.amd,
    )


def _ways(
    builder: Builder,
    gpus: list[int],
    nets: list[int],
    ways: dict[int, list[Way]],
    parts: Parts,
) -> tuple[Ways, Ways, Ways]:
    """From GPU to GPU, from GPU to net, and from net to GPU; `ways` lead to every node from all others."""
    between = _between(builder, gpus, ways, parts.shm, parts.farthest)
    out = [[ways[net][gpu] for net in nets] for gpu in gpus]
    back = [[ways[gpu][net] for gpu in gpus] for net in nets]
    if parts.pxn:
        _relays(between, out, back)
    return _frozen(between), _frozen(out), _frozen(back)


def _nets(builder: Builder, parts: Parts) -> list[int]:
    """The nodes of the networks behind the NICs that count."""
    counted = builder.of_kind("nic")[:: parts.together]
    return [_net(builder, nic, parts.speed, parts.together) for nic in counted]


def _switched(
    builder: Builder, gpus: list[int], ways: dict[int, list[Way]], shm: bool
) -> tuple[tuple[Way, ...], tuple[Way, ...]]:
    """Ways from every GPU to the NVSwitch and back; none without one, or through the host's memory."""
    switches = builder.of_kind("nvs")
    if not switches or shm:
        return (), ()
    reach = builder.ways(switches[0])
    up = tuple(reach[gpu] for gpu in gpus)
    return up, tuple(ways[gpu][switches[0]] for gpu in gpus)


def _frozen(rows: Rows) -> Ways:
    return tuple(map(tuple, rows))


def _slots(
    builder: Builder, gpus: list[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """NVLinks of every GPU, and MB/s of its PCIe slot: 0 without one."""
    nvlinks = tuple(tuple(builder.links_of(gpu, NVL)) for gpu in gpus)
    slots = [[builder.room[at] for at in builder.links_of(gpu, PIX)] for gpu in gpus]
    return nvlinks, tuple(min(rooms, default=0) for rooms in slots)


def _nodes(fabric: Any, group: Group, host: Sequence[str]) -> dict[str, str]:
    """Kinds of a host's CPUs and PCIe switches, the group's GPUs, and the NICs if it has several hosts."""
    nodes = fabric.nodes
    hosts = nodes.host_at[fabric.positions(host)]
    within = np.flatnonzero(np.isin(nodes.host_at, hosts)).tolist()
    inside = [(nodes.names[at], nodes.kinds[at]) for at in within]
    names = {name: BRIDGES[kind] for name, kind in inside if kind in BRIDGES}
    names |= dict.fromkeys(host, "gpu")
    if group.nodes > 1:
        names |= {name: kind for name, kind in inside if kind == "nic"}
    return names


def _links(builder: Builder, leaving: Iterable[Leaving]) -> None:
    """The host's links, several between two nodes as the fastest, and all NVSwitches as one."""
    to_switch: dict[int, float] = {}
    direct: dict[tuple[int, int, int], float] = {}
    for a, b, type_, speed in leaving:
        if b is not None:
            ends = _ends(a, b, type_)
            direct[ends] = max(direct.get(ends, 0.0), speed)
        elif type_ == NVL and builder.nodes[a].kind == "gpu":
            to_switch[a] = to_switch.get(a, 0.0) + speed
    if to_switch:
        switch = builder.node("nvs")
        for gpu, speed in to_switch.items():
            builder.link(gpu, switch, NVL, round(speed))
    for (a, b, type_), speed in direct.items():
        builder.link(a, b, type_, round(speed))


def _ends(a: int, b: int, type_: int) -> tuple[int, int, int]:
    """A link without direction."""
    return min(a, b), max(a, b), type_


def _leaving(fabric: Any, names: dict[str, int], kind: Generation) -> Iterator[Leaving]:
    """Links that NCCL follows from the host's nodes: ends (None: an NVSwitch), type and MB/s.

    GPUs of other communicators, and what leads to them, NCCL has taken out (ncclTopoTrimSystem).
    """
    leaving = np.isin(fabric.ends[0], fabric.positions(list(names)))
    for row in np.flatnonzero(leaving).tolist():
        there = fabric.links.dst[row]
        a, b = names[fabric.links.src[row]], names.get(there)
        if b is None and fabric.nodes.kinds[fabric.node_index(there)] == "gpu":
            continue
        type_, speed = _speed(fabric, row, kind)
        if type_ is not None and a != b:
            yield a, b, type_, speed


def _speed(fabric: Any, row: int, kind: Generation) -> tuple[int | None, float]:
    """Type and MB/s of a link as NCCL has them; (None, 0) of one that it does not follow."""
    raw = float(fabric.links.raw[row])
    socket = fabric.cluster_facts.socket_rate
    speeds = {
        "nvlink": (NVL, raw * kind.nvlink_share / 1e6),
        "pcie": (PIX, raw * PCIE / 1e6),
        "c2c": (C2C, raw / 1e6),
        "socket": (SYS, socket / 1e6 if socket else float(kind.socket)),
    }
    return speeds.get(str(fabric.links.kind[row]), (None, 0.0))


def _net(builder: Builder, nic: int, speed: float, merged: int) -> int:
    """The network behind a NIC, which has the PCIe slots of all that count as one."""
    node = builder.node("net")
    for link, _, _ in builder.nodes[nic].links:
        builder.room[link] *= merged
        builder.room[builder.reverse[link]] *= merged
    builder.link(nic, node, NET, round(speed))
    return node


def _between(
    builder: Builder,
    gpus: list[int],
    to: dict[int, list[Way]],
    shm: bool,
    farthest: int | None,
) -> list[list[Way]]:
    """From GPU to GPU; through host memory where they are too far for peer-to-peer, or it is off (`shm`)."""
    over = {cpu: builder.ways(cpu) for cpu in builder.of_kind("cpu")}
    if farthest is None:
        farthest = SYS if not builder.intel and len(gpus) <= 2 else PXB
    rows = [[to[other][gpu] for other in gpus] for gpu in gpus]
    for row, gpu in zip(rows, gpus, strict=True):
        for k, other in enumerate(gpus):
            if gpu != other and over and (shm or row[k].type > farthest):
                reach = (cpu for cpu in over if over[cpu][other].hops)
                cpu = min(reach, key=lambda cpu: over[cpu][other].hops)
                row[k] = joined(over[cpu][gpu], to[other][cpu])
    return rows


def _relays(
    between: list[list[Way]], out: list[list[Way]], back: list[list[Way]]
) -> None:
    """PXN: over NVLink to the GPU whose NIC it is, where that is faster or avoids the CPU."""
    for net in range(len(back)):
        owner = _owner(out, back, net)
        if owner is None:
            continue
        last = out[owner][net]
        for gpu, row in enumerate(out):
            first, direct = between[gpu][owner], row[net]
            better = last.speed > direct.speed or direct.type > PXN
            if gpu != owner and last.type <= P2C and first.type <= NVL and better:
                row[net] = joined(first, last, PXN)
