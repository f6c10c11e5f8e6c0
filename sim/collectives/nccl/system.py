"""One host as NCCL sees it: GPUs, PCIe switches, CPUs, NVSwitches and networks, and the ways between them.

Speeds are NCCL's own for a kind of link (GB/s: src/graph/topo.h and topo.cc), ways its breadth-first search with its
types of distance (src/graph/paths.cc): LOC, NVL, NVB (over a GPU), C2C, PIX (one PCIe switch), PXB (several), P2C,
PXN (a GPU's NIC over NVLink), PHB (over a CPU), SYS (between sockets). A "host" is what needs no network: a rack of
NVL72 is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.collectives.group import Group
from sim.collectives.nccl.ways import (
    C2C,
    DIS,
    LOC,
    LOCAL,
    NET,
    NVB,
    NVL,
    P2C,
    PHB,
    PIX,
    PXB,
    PXN,
    SOCKET,
    SYS,
    TYPES,
    Builder,
    Way,
    joined,
)
from sim.collectives.wires.transport import PCIE

__all__ = [
    "DIS",
    "LOC",
    "NVB",
    "NVL",
    "PHB",
    "PIX",
    "PXB",
    "PXN",
    "SYS",
    "TYPES",
    "System",
    "Way",
    "system_of",
]


@dataclass(eq=False)
class System:
    """One host.

    Attributes
    ----------
    gpus, nets : list of str
        GPUs of the communicator on it, and its NICs (none on a communicator of one host).
    room : list of int
        MB/s left on every directed link; the search takes from it and gives back.
    speed : list of int
        MB/s of every net.
    between, out, back : lists of lists of Way
        From GPU to GPU, from GPU to net, from net to GPU.
    up, down : lists of Way
        From GPU to NVSwitch and back; empty without one.
    pcie : list of int
        MB/s of every GPU's PCIe slot.
    amd : bool
        Whether its CPUs are AMD's: a way through them costs no more, and two GPUs talk directly over them.
    """

    gpus: list[str]
    nets: list[str]
    room: list[int] = field(default_factory=list)
    speed: list[int] = field(default_factory=list)
    between: list[list[Way]] = field(default_factory=list)
    out: list[list[Way]] = field(default_factory=list)
    back: list[list[Way]] = field(default_factory=list)
    up: list[Way] = field(default_factory=list)
    down: list[Way] = field(default_factory=list)
    pcie: list[int] = field(default_factory=list)
    amd: bool = False

    @property
    def most(self) -> int:
        """MB/s of the best way that a channel takes: between GPUs, or out of the host."""
        if len(self.gpus) == 1 and not self.nets:
            return LOCAL
        ways = self.out if self.nets else self.between
        return max((way.speed for row in ways for way in row if way.hops), default=0)

    @property
    def total(self) -> int:
        """MB/s of one GPU's NVLinks, or of its PCIe slot."""
        if len(self.gpus) == 1 and not self.nets:
            return LOCAL
        nvlink = [sum(self.room[i] for i in links) for links in self.nvlinks]
        return max(max(pair) for pair in zip(nvlink, self.pcie, strict=True))

    nvlinks: list[list[int]] = field(default_factory=list)

    @property
    def content(self) -> tuple[object, ...]:
        """All but the names: hosts with equal ones are searched alike."""

        def ways(rows: list[list[Way]]) -> tuple[object, ...]:
            return tuple(
                tuple((w.type, w.hops, w.speed, w.links, w.cost) for w in row)
                for row in rows
            )

        return (
            len(self.gpus),
            len(self.nets),
            tuple(self.room),
            tuple(self.speed),
            ways(self.between),
            ways(self.out),
            ways(self.back),
            ways([self.up, self.down]),
            tuple(self.pcie),
            tuple(map(tuple, self.nvlinks)),
            self.amd,
        )

    def near(self, gpu: int) -> list[int]:
        """Nets that a GPU prefers, one per channel in turn (ncclTopoGetLocalNet)."""
        nets = _nearest(self.out[gpu])
        if not nets:
            return []
        sharing = max(1, len(_nearest(self.back[nets[0]])))
        each = -(-len(nets) // sharing)
        first = (
            _mirrored(gpu % sharing, len(nets)) if _power(len(nets)) else gpu % sharing
        )
        return [nets[(first + k) % len(nets)] for k in range(each)]

    def owner(self, net: int) -> int | None:
        """The GPU whose NIC it is."""
        return next(
            (gpu for gpu in _nearest(self.back[net]) if net in self.near(gpu)), None
        )


def _nearest(ways: Sequence[Way]) -> list[int]:
    """The fastest, and of those the closest."""
    reached = [way for way in ways if way.type < DIS]
    if not reached:
        return []
    best = max((way.speed, -way.type) for way in reached)
    return [
        at
        for at, way in enumerate(ways)
        if way.type < DIS and (way.speed, -way.type) == best
    ]


def _power(count: int) -> bool:
    return count & (count - 1) == 0


def _mirrored(value: int, power: int) -> int:
    """Bits of a number below a power of two, reversed."""
    bits = power.bit_length() - 1
    return int(format(value % power, f"0{bits}b")[::-1], 2) if bits else 0


def system_of(
    fabric: Any,
    group: Group,
    host: Sequence[str],
    kind: str,
    nvlink: float,
    pxn: bool = True,
) -> System:
    """NCCL's view of one of the group's hosts; `kind`: generation of its GPUs, `nvlink`: share of NVLink's wire."""
    builder, names = Builder(), {}
    inside = {fabric.host_of(gpu) for gpu in host}
    nodes = fabric.nodes
    kinds = {
        "gpu": "gpu",
        "cpu": "cpu",
        "pcieswitch": "pci",
        "nic": "nic",
        "nvswitch": "nvs",
    }
    for name, what, where in zip(nodes.names, nodes.kinds, nodes.hosts, strict=True):
        if what in ("cpu", "pcieswitch") and where in inside:
            names[name] = builder.node(kinds[what])
    for gpu in host:
        names[gpu] = builder.node("gpu")
    nics = (
        [n for n in nodes.of_kind("nic") if fabric.host_of(n) in inside]
        if group.nodes > 1
        else []
    )
    names |= {nic: builder.node("nic") for nic in nics}
    amd = bool(fabric.cluster_facts.amd_cpu)
    _links(builder, fabric, names, host, kind, nvlink)
    nets = _nets(builder, fabric, group, names, nics, len(host))
    made = System(
        list(host),
        [name for name, _, _ in nets],
        speed=[speed for _, _, speed in nets],
        amd=amd,
    )
    _ways(
        made,
        builder,
        [names[gpu] for gpu in host],
        [node for _, node, _ in nets],
        group,
        not amd,
        pxn,
    )
    return made


def _links(
    builder: Builder,
    fabric: Any,
    names: dict[str, int],
    host: Sequence[str],
    kind: str,
    share: float,
) -> None:
    links = fabric.links
    switch: dict[int, float] = {}
    seen: dict[tuple[int, int, int], float] = {}
    mine = set(host)
    for row in _rows(fabric, names, mine):
        src, dst, sort, raw = (
            str(links.src[row]),
            str(links.dst[row]),
            str(links.kind[row]),
            float(links.raw[row]),
        )
        a, b = names.get(src), names.get(dst)
        if sort == "nvlink" and src in mine and b is None:
            switch[names[src]] = switch.get(names[src], 0.0) + raw * share / 1e6
        elif a is not None and b is not None and a != b:
            type_, speed = _speed(sort, raw, share, kind, fabric)
            if type_ is not None:
                key = (min(a, b), max(a, b), type_)
                seen[key] = max(seen.get(key, 0.0), speed)
    if switch:
        nvs = builder.node("nvs")
        for gpu, speed in switch.items():
            builder.link(gpu, nvs, NVL, round(speed))
    for (a, b, type_), speed in seen.items():
        builder.link(a, b, type_, round(speed))


def _rows(fabric: Any, names: dict[str, int], mine: Iterable[str]) -> list[int]:
    """Links that begin in the host."""
    src = fabric.links.src
    return [row for row in range(len(src)) if src[row] in names]


def _speed(
    sort: str, raw: float, share: float, kind: str, fabric: Any
) -> tuple[int | None, float]:
    if sort == "nvlink":
        return NVL, raw * share / 1e6
    if sort == "pcie":
        return PIX, raw * PCIE / 1e6
    if sort == "c2c":
        return C2C, raw / 1e6
    if sort == "socket":
        return SYS, raw / 1e6 if fabric.family == "nccl_xml" else float(SOCKET[kind])
    return None, 0.0


def _nets(
    builder: Builder,
    fabric: Any,
    group: Group,
    names: dict[str, int],
    nics: list[str],
    gpus: int,
) -> list[tuple[str, int, int]]:
    """(name, node, MB/s) of every network; several NICs of one GPU, as on AWS's p5, count as one."""
    found = []
    merge = (
        max(1, len(nics) // max(1, gpus))
        if len(nics) > gpus and group.net.nics <= gpus
        else 1
    )
    for at in range(0, len(nics), merge):
        node = builder.node("net")
        speed = group.net.speed / 1e6
        for link, _, _ in builder.nodes[
            names[nics[at]]
        ].links:  # several slots count as one
            builder.room[link] *= merge
            builder.room[builder.reverse[link]] *= merge
        builder.link(names[nics[at]], node, NET, round(speed))
        found.append((nics[at], node, round(speed)))
    return found


def _ways(
    made: System,
    builder: Builder,
    gpus: list[int],
    nets: list[int],
    group: Group,
    intel: bool,
    pxn: bool,
) -> None:
    to = {node: builder.ways(node, intel) for node in (*gpus, *nets)}
    cpus = [at for at, node in enumerate(builder.nodes) if node.kind == "cpu"]
    over = {cpu: builder.ways(cpu, intel) for cpu in cpus}
    made.room = builder.room
    made.nvlinks = [
        [at for at, _, kind in builder.nodes[gpu].links if kind == NVL] for gpu in gpus
    ]
    slots = [
        [at for at, _, kind in builder.nodes[gpu].links if kind == PIX] for gpu in gpus
    ]
    made.pcie = [min((builder.room[at] for at in mine), default=0) for mine in slots]
    farthest = SYS if made.amd and len(gpus) <= 2 else PXB
    for gpu in gpus:
        row = []
        for other in gpus:
            way = to[other][gpu]
            if gpu != other and cpus and (way.type > farthest or group.inside == "shm"):
                cpu = min(
                    (c for c in cpus if over[c][other].hops),
                    key=lambda c: over[c][other].hops,
                )
                way = joined(over[cpu][gpu], to[other][cpu])
            row.append(way)
        made.between.append(row)
    made.out = [[to[net][gpu] for net in nets] for gpu in gpus]
    made.back = [[to[gpu][net] for gpu in gpus] for net in nets]
    nvs = [at for at, node in enumerate(builder.nodes) if node.kind == "nvs"]
    if nvs and group.inside != "shm":
        reach = builder.ways(nvs[0], intel)
        made.up, made.down = (
            [reach[gpu] for gpu in gpus],
            [to[gpu][nvs[0]] for gpu in gpus],
        )
    if pxn:
        _relays(made)


def _relays(made: System) -> None:
    """PXN: over NVLink to the GPU whose NIC it is, where that is faster or avoids the CPU."""
    for net in range(len(made.nets)):
        owner = made.owner(net)
        for gpu in range(len(made.gpus)):
            if owner is None or owner == gpu:
                continue
            direct, last, first = (
                made.out[gpu][net],
                made.out[owner][net],
                made.between[gpu][owner],
            )
            better = last.speed > direct.speed or direct.type > PXN
            if last.type <= P2C and first.type <= NVL and better:
                made.out[gpu][net] = joined(first, last, PXN)
