"""The way of a KV cache from a prefill worker to a decode worker, leg by leg."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sim.engine.storage import Leg
from sim.errors import InputError, Mistake
from sim.graph.usage import by_link
from sim.serving.pools import Pools
from topologies.fabric import Fabric

Way = tuple[np.ndarray, np.ndarray]  # rows of links, and bytes on each per byte sent
Pairs = list[tuple[str, str]]  # nodes that send, and those that they send to


def legs_of(
    p: Pools, source: tuple[str, ...], target: tuple[str, ...]
) -> tuple[str, tuple[Leg, ...]]:
    """The path that was taken, and the legs of a cache from a prefill worker to a decode worker.

    Raises
    ------
    InputError
        If there is no such way between them.
    """
    many = max(len(source), len(target))
    pairs = [
        (source[k * len(source) // many], target[k * len(target) // many])
        for k in range(many)
    ]
    path = _path(p, pairs)
    if path == "nvlink":
        return path, (_leg(path, p, pairs),)
    if path == "rdma":
        ways = [_by_nics(p.fabric, a, b) for a, b in pairs]
        return path, (_leg_of(path, p, ways),)
    return path, _staged(p, path, pairs)


def _path(p: Pools, pairs: Pairs) -> str:
    """The path that is asked for; "auto" is NVLink where it joins the GPUs, else RDMA."""
    fabric, path = p.fabric, p.scenario.inference.path
    rows = [fabric.spread(a, b)[0] for a, b in pairs]
    kinds = {str(fabric.links.kind[row]) for some in rows for row in some}
    nvlink = bool(kinds) and all(
        kind.startswith(("nvlink", "nvswitch", "c2c")) for kind in kinds
    )
    if path == "nvlink" and not nvlink:
        found = f"links of {', '.join(sorted(kinds))}"
        raise _no_way(p, found, "GPUs that NVLink connects")
    if path == "auto":
        return "nvlink" if nvlink else "rdma"
    return path


def _staged(p: Pools, path: str, pairs: Pairs) -> tuple[Leg, ...]:
    """Down to memories or disks, between them where they differ, and up from there."""
    kind = "memory" if path == "host" else "nvme"
    down = [(a, p.fabric.nearest(a, kind)) for a, _ in pairs]
    up = [(p.fabric.nearest(b, kind), b) for _, b in pairs]
    stages = [(x, y) for (_, x), (y, _) in zip(down, up, strict=True)]
    between = [(x, y) for x, y in stages if x != y]
    if path == "nvme" and _leave_host(p.fabric, between):
        expected = "pools on one host, whose disks both reach"
        raise _no_way(p, "pools on different hosts", expected)
    legs = [_leg(f"to {kind}", p, down)]
    if path == "host" and between:
        legs.append(_leg("between hosts", p, between))
    return (*legs, _leg(f"from {kind}", p, up))


def _leave_host(fabric: Fabric, pairs: Pairs) -> bool:
    """Whether any pair is of two hosts."""
    return any(fabric.host_of(a) != fabric.host_of(b) for a, b in pairs)


def _no_way(p: Pools, found: str, expected: str) -> InputError:
    found = f"{p.scenario.inference.path}: {found}"
    return InputError(Mistake(p.scenario.where, "inference.path", found, expected))


def _leg(name: str, p: Pools, pairs: Pairs) -> Leg:
    """A cache that goes between pairs of nodes, in equal shares."""
    return _leg_of(name, p, [p.fabric.spread(a, b) for a, b in pairs])


def _leg_of(name: str, p: Pools, ways: list[Way]) -> Leg:
    links, usage = added(ways)
    return Leg(name, p.cache, links=links, usage=usage)


def added(ways: list[Way]) -> Way:
    """Usage of links added up; each way carries an equal share of the bytes."""
    return by_link([(rows, usage / len(ways)) for rows, usage in ways])


def _by_nics(fabric: Fabric, a: str, b: str) -> Way:
    """Links from a GPU to its NIC, to the NIC of another, and to that."""
    nodes = a, fabric.nearest(a, "nic"), fabric.nearest(b, "nic"), b
    ways = [fabric.spread(x, y) for x, y in pairwise(nodes) if x != y]
    rows = np.concatenate([rows for rows, _ in ways])
    return rows, np.concatenate([usage for _, usage in ways])
