"""The cycles that NCCL's channels follow, one per GPU of a host, so that every NIC and link carries its part."""

from __future__ import annotations

from functools import lru_cache

from sim.collectives.group import Group


@lru_cache(maxsize=256)
def cycles(group: Group) -> tuple[tuple[str, ...], ...]:
    """Orders of all ranks; channels take turns over them.

    Channel k enters a host at GPU k and leaves at k - 1; every other host is walked backwards, so that
    both ends of a wire between hosts are the same rail. On one host a rotation changes nothing: one cycle.
    """
    if group.nodes == 1:
        return (group.ranks,)
    return tuple(
        tuple(gpu for number, host in enumerate(group.hosts) for gpu in _walk(host, k, number % 2 == 1))
        for k in range(max(len(host) for host in group.hosts))
    )


def _walk(host: tuple[str, ...], k: int, backwards: bool) -> tuple[str, ...]:
    start = k % len(host)
    order = host[start:] + host[:start]
    return order[::-1] if backwards else order


def edges(cycle: tuple[str, ...]) -> list[tuple[str, str]]:
    """Neighbours along a cycle; nothing for a single rank."""
    return list(zip(cycle, cycle[1:] + cycle[:1], strict=True)) if len(cycle) > 1 else []
