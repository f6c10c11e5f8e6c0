"""The cycles that NCCL's channels follow, one per GPU of a host, so that every NIC and link carries its part."""

from __future__ import annotations

from functools import lru_cache

from prestep.sim.collectives.group import Group


@lru_cache(maxsize=256)
def cycles(group: Group, cross_nic: int = 2) -> tuple[tuple[str, ...], ...]:
    """Orders of all ranks; channels take turns over them.

    Channel k enters a host at GPU k and leaves at k - 1; with `cross_nic` 2 every other host is walked backwards, so
    that both ends of a wire between hosts are the same rail. With 0 the bytes reach the next host on the rail of its
    first GPU over NVLink (the caller relays them), with 1 they cross rails in the network. On one host a rotation
    changes nothing: one cycle; GPUs that share the host's only NIC make one order too: there is no rail to keep.
    """
    if group.nodes == 1 or group.net.nics == 1:
        return (group.ranks,)
    swaps = cross_nic == 2
    return tuple(
        tuple(
            gpu
            for number, host in enumerate(group.hosts)
            for gpu in _walk(host, k, swaps and number % 2 == 1)
        )
        for k in range(max(len(host) for host in group.hosts))
    )


def _walk(host: tuple[str, ...], k: int, backwards: bool) -> tuple[str, ...]:
    start = k % len(host)
    order = host[start:] + host[:start]
    return order[::-1] if backwards else order


def edges(cycle: tuple[str, ...]) -> list[tuple[str, str]]:
    """Neighbours along a cycle; nothing for a single rank."""
    return (
        list(zip(cycle, cycle[1:] + cycle[:1], strict=True)) if len(cycle) > 1 else []
    )
