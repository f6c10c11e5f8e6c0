"""What families of clusters share: checks of counts, rows of switches, and how they are cabled to hosts and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prestep.sim.errors import Mistake
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric.builder import FabricBuilder

Item = TypeVar("Item")

CABLE = LinkSpec(
    Quantity(
        48e9,
        "fitted",
        "NCCL src/graph/search.cc: the highest speed of one 400 Gbit/s port that it tries",
    ),
    Quantity(
        0.5e-6, "guess", "order of magnitude of an InfiniBand switch and its cable"
    ),
    raw=Quantity(50e9, "datasheet", "NVIDIA Quantum-2: NDR, 400 Gbit/s per port"),
)


def too_few(family: str, params: object, least: Mapping[str, int]) -> list[Mistake]:
    """A mistake for every count of a family's parameters that is below its least."""
    return [
        Mistake(family, key, str(getattr(params, key)), f"at least {low}")
        for key, low in least.items()
        if getattr(params, key) < low
    ]


@dataclass(frozen=True)
class HostNodes:
    """Adds the nodes of one host to a cluster; `prefix` comes before their names: ``host0/gpu3``."""

    builder: FabricBuilder
    host: str
    prefix: str = ""

    def one(self, kind: str, number: int) -> str:
        """One node, named by its kind and number."""
        return self.builder.node(f"{self.prefix}{kind}{number}", kind, self.host)

    def row(self, kind: str, count: int) -> list[str]:
        """Nodes of one kind, numbered from 0."""
        return [self.one(kind, number) for number in range(count)]


def add_row(
    builder: FabricBuilder, kind: str, count: int, prefix: str = "", first: int = 0
) -> list[str]:
    """Switches of one kind, numbered from `first`: ``pod0/spine0``, ``pod0/spine1``, ..."""
    return [builder.node(f"{prefix}{kind}{first + at}", kind) for at in range(count)]


def add_cpus(
    nodes: HostNodes, count: int, memory: LinkSpec, socket: LinkSpec
) -> list[str]:
    """A host's CPUs, each with its own memory, and a link between every two of them."""
    cpus = nodes.row("cpu", count)
    for number, cpu in enumerate(cpus):
        nodes.builder.link(cpu, nodes.one("memory", number), "memory", memory)
    add_pairs(nodes.builder, cpus, "socket", socket)
    return cpus


def slot(slots: Sequence[str], at: int, count: int) -> str:
    """The slot of device `at` of `count`, dealt out in blocks: 8 devices over 2 slots are 4 and 4."""
    return slots[at * len(slots) // count]


def plug(
    builder: FabricBuilder,
    slots: Sequence[str],
    devices: Sequence[str],
    kind: str,
    link: LinkSpec,
) -> None:
    """Deal devices out over slots in equal blocks, in order."""
    for at, device in enumerate(devices):
        builder.link(slot(slots, at, len(devices)), device, kind, link)


def add_pairs(
    builder: FabricBuilder,
    nodes: Sequence[str],
    kind: str,
    link: LinkSpec,
    count: int = 1,
) -> None:
    """Join every two of some nodes by `count` links."""
    for at, node in enumerate(nodes):
        for other in nodes[:at]:
            builder.link(other, node, kind, link, count)


def add_nvlinks(
    builder: FabricBuilder,
    gpu: str,
    nvswitches: Sequence[str],
    counts: Sequence[int],
    nvlink: LinkSpec,
) -> None:
    """Join a GPU to every NVSwitch, by `counts` links each."""
    for nvswitch, count in zip(nvswitches, counts, strict=True):
        builder.link(gpu, nvswitch, "nvlink", nvlink, count)


def add_network(builder: FabricBuilder, nics: Sequence[str], port: LinkSpec) -> None:
    """One network that blocks nothing over all NICs."""
    builder.node("network", "network")
    for nic in nics:
        builder.link(nic, "network", "nic", port)


def by_units(items: list[Item], each: int) -> list[list[Item]]:
    """Units of `each` items, filled one after the other; the last one may be smaller."""
    return [items[first : first + each] for first in range(0, len(items), each)]


def add_below(
    builder: FabricBuilder,
    nics: Sequence[Sequence[str]],
    switches: Sequence[str],
    hosts_each: int,
    port: LinkSpec,
) -> None:
    """All NICs of a host under one switch, `hosts_each` hosts under each, in order (`nics` has a row per host)."""
    above = [switches[at // hosts_each] for at, one in enumerate(nics) for _ in one]
    builder.cables([nic for one in nics for nic in one], above, "nic", port)


def add_rails(
    builder: FabricBuilder, prefix: str, nics: list[list[str]], port: LinkSpec
) -> list[str]:
    """One leaf per rail, with NIC `rail` of every host under it (`nics` has a row per host); returns the leaves."""
    leaves = add_row(builder, "leaf", len(nics[0]), prefix)
    for rail, leaf in enumerate(leaves):
        builder.cables([one[rail] for one in nics], [leaf] * len(nics), "nic", port)
    return leaves


def add_mesh(
    builder: FabricBuilder,
    low: list[str],
    high: list[str],
    kind: str,
    cable: LinkSpec,
    count: int = 1,
) -> None:
    """Join every switch of `low` to every switch of `high` by `count` cables."""
    builder.cables(
        [one for one in low for _ in high], list(high) * len(low), kind, cable, count
    )


def add_spines(
    builder: FabricBuilder,
    low: list[str],
    count: int,
    cable: LinkSpec,
    cables: int,
    prefix: str = "",
    first: int = 0,
) -> list[str]:
    """Spines over switches, `cables` from each of those to each spine; returns the spines."""
    spines = add_row(builder, "spine", count, prefix, first)
    add_mesh(builder, low, spines, "spine", cable, cables)
    return spines
