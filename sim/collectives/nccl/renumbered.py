"""Hosts that differ in the numbers of their NICs and links alone, as one: they share a search.

The GPU of a tray that comes second has another NIC than the first, and the same ways. The search knows a NIC by its
place among those to try and a link by what is left of it, so that new numbers change nothing that it finds as long as
NICs are tried in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from prestep.sim.collectives.nccl.system import System, Ways
from prestep.sim.collectives.nccl.ways import DIS, Way


def renumbered(system: System) -> System:
    """The host with its NICs in the order in which they are tried, unless new numbers would change that order."""
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
        return replace(way, links=tuple(number[link] for link in way.links))

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
