"""What NCCL's search finds on the hosts of a communicator, remembered with the fabric.

Of a communicator's hosts with as many GPUs the first is searched. Of hosts whose GPUs, NICs and ways are equal but for
their names and the numbers of their NICs one is searched: what is found has no names in it, and its NICs are numbered
in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.graphs import BALANCED, NVLS, RING, Channels, compute
from prestep.sim.collectives.nccl.system import Parts, System, Ways, of_parts, parts_of
from prestep.sim.collectives.nccl.ways import DIS, Way
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.costs.gpu_files import generation_of


@dataclass(frozen=True)
class Graphs:
    """The ring, the tree, and NVLink SHARP's heads (None where there are no NVSwitches for it)."""

    ring: Channels
    tree: Channels
    nvls: Channels | None


def every_host(group: Group, fabric: Any, settings: Nccl) -> list[Graphs]:
    """What was found on each host."""
    sizes = by_size(group, fabric, settings)
    return [sizes[len(host)] for host in group.hosts]


def by_size(group: Group, fabric: Any, settings: Nccl) -> dict[int, Graphs]:
    """What was found on hosts of each number of GPUs, in the order in which the group has them."""
    return {
        size: on_host(group, fabric, settings, host)
        for size, host in group.first_of_size.items()
    }


def on_host(group: Group, fabric: Any, settings: Nccl, host: tuple[str, ...]) -> Graphs:
    """What is found on one of the group's hosts."""
    how = (
        settings.cross_nic,
        settings.pxn_disable,
        settings.release,
        group.inside,
        group.outside,
        group.farthest,
        group.net.speed,
    )
    key = ("graphs", host, group.nodes > 1, how)
    return paths.once(fabric, key, lambda: _search(group, fabric, settings, host))


def _search(group: Group, fabric: Any, settings: Nccl, host: tuple[str, ...]) -> Graphs:
    kind = generation_of(fabric.gpu_model).at(settings.release)
    parts = parts_of(fabric, group, host, kind, not settings.pxn_disable)
    speeds = kind.net_speeds if "nic" in parts.kinds else kind.host_speeds
    most = 32 if settings.release >= (2, 25) else 16
    return _of_parts(parts, kind.capability, speeds, settings.cross_nic, most)


# Pure functions of values: a cluster has few kinds of hosts, and a sweep over host counts meets them again. Most are
# told by their parts, before anybody looks for ways; those whose NICs have other numbers afterwards.
@lru_cache(maxsize=256)
def _of_parts(
    parts: Parts, sm: int, speeds: tuple[float, ...], cross_nic: int, most: int
) -> Graphs:
    return _graphs(renumbered(of_parts(parts)), sm, speeds, cross_nic, most)


@lru_cache(maxsize=256)
def _graphs(
    system: System, sm: int, speeds: tuple[float, ...], cross_nic: int, most: int
) -> Graphs:
    ring = compute(system, RING, sm, speeds, cross_nic, most=most)
    ring = ring if ring.count else _simple(ring, len(system.gpus), bool(system.nets))
    tree = compute(
        system, BALANCED, sm, speeds, cross_nic, least=ring.count, most=ring.count
    )
    tree = tree if tree.count else _simple(tree, len(system.gpus), bool(system.nets))
    switched = system.up and sm >= 90 and len(system.gpus) > 1
    return Graphs(
        ring, tree, compute(system, NVLS, sm, speeds, cross_nic) if switched else None
    )


def _simple(nothing: Channels, gpus: int, nets: bool) -> Channels:
    """One channel in the order of the GPUs at 0.1 GB/s: what NCCL falls back to."""
    return Channels(
        nothing.pattern,
        0.1,
        0.1,
        9,
        9,
        orders=(tuple(range(gpus)),),
        nets=((0, 0),) if nets else (),
        least=nothing.least,
        most=nothing.most,
    )


def renumbered(system: System) -> System:
    """The host with its NICs in the order in which they are tried, unless new numbers would change that order.

    The GPU of a tray that comes second has another NIC than the first, and the same ways. The search knows a NIC by
    its place among those to try and a link by what is left of it: new numbers change nothing that it finds as long as
    NICs are tried in the same order, and hosts that differ in numbers alone share a search.
    """
    order = _tried(system)
    permuted = replace(
        system,
        nets=tuple(system.nets[net] for net in order),
        speed=tuple(system.speed[net] for net in order),
        out=tuple(tuple(row[net] for net in order) for row in system.out),
        back=tuple(system.back[net] for net in order),
    )
    return _with_links(permuted if _alike(system, permuted, order) else system)


def _tried(system: System) -> list[int]:
    """NICs as channels come in by them: those that GPUs prefer, then the others by distance."""
    preferred = [net for nets in system.preferred for net in nets]
    farther = [net for nets in _by_type(system) for net in nets]
    return list(dict.fromkeys((*preferred, *farther, *range(len(system.nets)))))


def _by_type(system: System) -> Iterator[list[int]]:
    """NICs at every distance from every GPU, the closest first; those without a way are never tried."""
    for type_ in range(DIS):
        for row in system.out:
            yield [net for net, way in enumerate(row) if way.type == type_]


def _alike(system: System, permuted: System, order: Sequence[int]) -> bool:
    """Whether every GPU tries the same NICs in the same order, and has the same."""

    def before(nets: Sequence[int]) -> list[int]:
        return [order[net] for net in nets]

    tried = list(map(before, _by_type(permuted))) == list(_by_type(system))
    preferred = list(map(before, permuted.preferred)) == system.preferred
    owners = [system.owners[net] for net in order] == permuted.owners
    return tried and preferred and owners


def _with_links(system: System) -> System:
    """The host with its links numbered as ways come by them; links on no way are left out."""
    ways = _ways(system)
    links = [link for way in ways for link in way.links]
    links += [link for nvlinks in system.nvlinks for link in nvlinks]
    number = {link: at for at, link in enumerate(dict.fromkeys(links))}

    def renamed(way: Way) -> Way:
        return way._replace(links=tuple(number[link] for link in way.links))

    def rows(ways: Ways) -> Ways:
        return tuple(tuple(map(renamed, row)) for row in ways)

    return replace(
        system,
        room=tuple(system.room[link] for link in number),
        between=rows(system.between),
        out=rows(system.out),
        back=rows(system.back),
        up=tuple(map(renamed, system.up)),
        down=tuple(map(renamed, system.down)),
        nvlinks=tuple(tuple(number[at] for at in links) for links in system.nvlinks),
    )


def _ways(system: System) -> list[Way]:
    """All ways of a host, in one order for all hosts."""
    rows = (*system.between, *system.out, *system.back, system.up, system.down)
    return [way for row in rows for way in row]
