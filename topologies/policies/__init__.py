"""Routing policies: which of the equal-cost paths the bytes between two GPUs take, one file each, found by its name.

A policy is a module with `spread(fabric, src, dst, routing) -> (rows, share)`: rows of `fabric.links` in link order,
and the bytes on each per byte sent. It is asked only about pairs whose paths leave their host, and asked once for each:
`Fabric.spread` remembers. Inside a host nothing is chosen: NVSwitches spread by address, whatever the network does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.plugins import load_function

if TYPE_CHECKING:
    from topologies.core.links import Floats, Ints
    from topologies.fabric import Fabric

    Paths = Sequence[tuple[Ints, float]]
    Choose = Callable[[str, str, Paths], Paths]

__all__ = ["ADAPTIVE", "Routing", "added", "between_nics", "leaves_host", "spread"]

_INSIDE = frozenset({"nvlink", "c2c", "pcie", "memory", "nvme", "socket"})


@dataclass(frozen=True)
class Routing:
    """A policy and what it goes by.

    Attributes
    ----------
    policy
        A file of this folder.
    seed
        Of the switches' hash (ecmp).
    flows
        Connections between two NICs, each hashed by itself (ecmp).
    pxn
        Whether a GPU may send by way of its neighbour on the receiver's rail (rail; NCCL_PXN_DISABLE).
    """

    policy: str = "adaptive"
    seed: int = 0
    flows: int = 1
    pxn: bool = True


ADAPTIVE = Routing()


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """Rows and shares by the policy that `routing` names; see the module.

    Raises
    ------
    InputError
        If there is no such policy, an end is no node, or there is no way between them.
    """
    routes = fabric.routes(src, dst)
    if not any(leaves_host(fabric, rows) for rows, _ in routes):
        return added(routes)
    rows, share = load_function(__name__, routing.policy, "spread")(
        fabric, src, dst, routing
    )
    return rows, share


def leaves_host(fabric: Fabric, rows: Ints) -> bool:
    """Whether a path goes over the network."""
    return any(kind not in _INSIDE for kind in fabric.links.kind[rows].tolist())


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
    return added(taken)


def added(paths: Paths) -> tuple[Ints, Floats]:
    """Paths summed up by link."""
    load: dict[int, float] = {}
    for path, share in paths:
        for row in path.tolist():
            load[row] = load.get(row, 0.0) + share
    rows = sorted(load)
    return np.array(rows, dtype=np.int64), np.array(
        [load[row] for row in rows], dtype=np.float64
    )


def _nics(fabric: Fabric, rows: Ints) -> tuple[str, str]:
    """The NICs by which a path leaves one host and enters the other; "" where a host has none."""
    src, dst = fabric.links.src[rows], fabric.links.dst[rows]
    passed = [
        str(name)
        for name in (*src[:1], *dst)
        if fabric.nodes.kinds[fabric.node_index(str(name))] == "nic"
    ]
    return (passed[0], passed[-1]) if passed else ("", "")
