"""What a tuner plug-in chooses: Amazon's, which compares (bytes, ranks) with polygons in logarithms (`tuners.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

from prestep.sim.collectives.group import Group

FEW = 2  # hosts that the plug-in leaves to NCCL: its regions are not made for them
EDGE = 1e-9  # octaves from an edge that count as on it; numbers of the file have six digits or more


@cache
def tables() -> dict[str, Any]:
    """Regions by platform, GPUs of a host and operation, in the plug-in's order."""
    path = Path(__file__).with_name("tuners.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def chosen(
    tuner: str, op: str, size: float, group: Group, able: Collection[tuple[str, str]]
) -> tuple[str, str] | None:
    """The algorithm and protocol that a plug-in takes among those that can run; None: it leaves the choice to NCCL.

    Examples
    --------
    >>> from prestep.sim.collectives.group import group_of
    >>> from prestep.topologies import load_cluster
    >>> fabric = load_cluster("aws-p6-b200")
    >>> group = group_of(fabric, fabric.gpus)
    >>> chosen("aws-p6-b200", "all_reduce", 2**20, group, [("tree", "LL128")])
    ('tree', 'LL128')
    """
    local, rest = divmod(group.n, group.nodes)
    if group.nodes <= FEW or rest:
        return None
    for region in tables()[tuner].get(str(local), {}).get(op, ()):
        which = region["algo"], region["proto"]
        if which in able and holds(region["edge"], size, group.n):
            return which
    return None


def holds(corners: Sequence[Sequence[float]], size: float, ranks: float) -> bool:
    """Whether a point lies within a polygon or on its edge: a ray to the right crosses an odd number of edges."""
    x, y = _place(size, ranks)
    places = [_place(*corner) for corner in corners]
    inside = False
    for (ax, ay), (bx, by) in zip(places, [*places[1:], places[0]], strict=True):
        along = min(ax, bx) - EDGE <= x <= max(ax, bx) + EDGE
        beside = min(ay, by) - EDGE <= y <= max(ay, by) + EDGE
        off = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        if along and beside and abs(off) <= EDGE * max(abs(bx - ax), abs(by - ay), 1):
            return True
        if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
            inside = not inside
    return inside


def _place(size: float, ranks: float) -> tuple[float, float]:
    """Logarithms of bytes and ranks; nothing counts as a millionth, as in the plug-in."""
    return log2(max(size, 1e-6)), log2(max(ranks, 1e-6))
