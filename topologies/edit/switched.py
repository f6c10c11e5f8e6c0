"""What is left of a cluster when devices and cables are switched off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from prestep.sim.errors import InputError
from prestep.topologies.core.checks import components
from prestep.topologies.core.links import Bools, Ints, Links, Nodes
from prestep.topologies.fabric import Fabric

# Devices that are of use with a single link, or none.
_STANDING = frozenset({"gpu", "cpu", "memory", "nvme", "storage"})
_SHOWN = 16


def off(
    fabric: Fabric, rows: Ints, devices: Sequence[str], key: str, where: str
) -> Fabric:
    """The fabric without some rows of links (both directions given) and without some devices.

    Raises
    ------
    InputError
        If a GPU is among the devices, or GPUs cannot reach each other any more; names their ranks.
    """
    gone = set(devices)
    ranks = [rank for rank, gpu in enumerate(fabric.gpus) if gpu in gone]
    if ranks:
        found = f"off, which takes away {_ranks(ranks, fabric)}"
        hint = (
            "fewer GPUs: cluster.hosts or cluster.gpus; a slower one: gpu[3].clock=0.5x"
        )
        expected = "every rank with its GPU"
        raise InputError.of(where, key, found, expected, hint)
    keep = np.ones(len(fabric.links), dtype=bool)
    keep[rows] = False
    gone |= _dead_ends(fabric, keep)
    _check_reach(fabric, keep, key, where)
    return _without(fabric, gone, keep)


def _without(fabric: Fabric, gone: set[str], keep: Bools) -> Fabric:
    """The fabric without some nodes, and with some of its links."""
    nodes = fabric.nodes
    rows = zip(nodes.names, nodes.kinds, nodes.hosts, strict=True)
    left = [row for row in rows if row[0] not in gone]
    names, kinds, hosts = zip(*left, strict=True)
    columns = {
        entry.name: getattr(fabric.links, entry.name)[keep] for entry in fields(Links)
    }
    return fabric.with_columns(nodes=Nodes(names, kinds, hosts), links=Links(**columns))


def _dead_ends(fabric: Fabric, keep: Bools) -> set[str]:
    """Switches and NICs that lost links and lead nowhere: their last cable goes too (`keep` is changed)."""
    src, dst = fabric.ends
    first, gone = np.bincount(src, minlength=len(fabric.nodes)), set[int]()
    while True:
        left = np.bincount(src[keep], minlength=len(fabric.nodes))
        dead = [
            at
            for at in np.flatnonzero((left <= 1) & (left < first)).tolist()
            if fabric.nodes.kinds[at] not in _STANDING and at not in gone
        ]
        if not dead:
            return {fabric.nodes.names[at] for at in gone}
        gone.update(dead)
        keep &= ~(np.isin(src, dead) | np.isin(dst, dead))


def _check_reach(fabric: Fabric, keep: Bools, key: str, where: str) -> None:
    """GPUs that are cut off from most of the others are an error."""
    src, dst = fabric.ends
    label = components(len(fabric.nodes), src[keep], dst[keep])
    part = label[[fabric.nodes.index[gpu] for gpu in fabric.gpus]]
    parts, counts = np.unique(part, return_counts=True)
    if len(parts) == 1:
        return
    main = parts[counts.argmax()]
    lost = np.flatnonzero(part != main).tolist()
    found = f"off, which cuts {_ranks(lost, fabric)} off from rank {int(np.flatnonzero(part == main)[0])}"
    raise InputError.of(
        where, key, found, "a way between any two ranks", "leave one of the ways on"
    )


def _ranks(ranks: Sequence[int], fabric: Fabric) -> str:
    """`rank 3 (host0/gpu3)`, or `ranks 8-15 (host1/gpu0, ...)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} ({fabric.gpus[ranks[0]]})"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    shown = ", ".join(text[:_SHOWN]) + (", ..." if len(text) > _SHOWN else "")
    return f"ranks {shown} ({fabric.gpus[ranks[0]]}, ...)"
