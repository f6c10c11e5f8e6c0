"""Routing policies: which of the equal-cost paths the bytes between two GPUs take, one file each, found by its name.

A policy is a module with `spread(fabric, src, dst, routing) -> (rows, share)`: rows of `fabric.links` in link order,
and the bytes on each per byte sent. It is asked only about pairs whose paths leave their host, and asked once for each:
`Fabric.spread` remembers. Inside a host nothing is chosen: NVSwitches spread by address, whatever the network does.
"""

from __future__ import annotations

from collections.abc import Callable

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.router import Paths, summed

__all__ = ["between_nics"]

Choose = Callable[[str, str, Paths], Paths]


def between_nics(
    fabric: Fabric, src: str, dst: str, choose: Choose
) -> tuple[Ints, Floats]:
    """Applies `choose(first NIC, last NIC, paths)` to the paths of every pair of NICs: NCCL chose those, not a switch.

    `choose` answers with the paths that are taken; their shares say how the pair's bytes are divided.
    """
    groups: dict[tuple[str, str], list[tuple[Ints, float]]] = {}
    for rows, share in fabric.routes(src, dst):
        groups.setdefault(_nics(fabric, rows), []).append((rows, share))
    taken: list[tuple[Ints, float]] = []
    for (first, last), paths in groups.items():
        whole = sum(share for _, share in paths)
        chosen = choose(first, last, paths)
        total = sum(share for _, share in chosen)
        taken += [(rows, whole * share / total) for rows, share in chosen]
    return summed(taken)


def _nics(fabric: Fabric, rows: Ints) -> tuple[str, str]:
    """The NICs by which a path leaves one host and enters the other; "" where a host has none."""
    src, dst = fabric.links.src[rows], fabric.links.dst[rows]
    passed = [
        str(name)
        for name in (*src[:1], *dst)
        if fabric.nodes.kinds[fabric.node_index(str(name))] == "nic"
    ]
    return (passed[0], passed[-1]) if passed else ("", "")
