"""The way of a KV cache from a prefill worker to a decode worker, leg by leg."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from prestep.sim.engine.storage import Leg
from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import by_link
from prestep.sim.serving.pools import PATHS, Pools
from prestep.sim.serving.requests import Sending
from prestep.sim.storage.systems import PART, REQUEST, Op
from prestep.topologies.fabric import Fabric

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
    if path in PATHS:
        return path, _staged(p, path, pairs)
    return path, _stored(p, pairs)


def sending(p: Pools, legs: tuple[Leg, ...], prefill: float) -> Sending:
    """A cache that leaves layer by layer while the prefill runs, or all of it afterwards.

    Layers are on their way one behind the other, through all legs at once, no faster than they are made. The last one
    is there when the prefill ends: its way, leg by leg, is what nothing hides.
    """
    if not p.inference.overlap or p.model.layers < 2:
        return Sending(legs)
    last = 1 / p.model.layers
    links, usage = by_link([(leg.links, leg.usage) for leg in legs])
    made = min([p.cache / prefill, *(leg.cap for leg in legs)])
    waits = sum(leg.latency for leg in legs)
    early = Leg("layers", p.cache * (1 - last), made, waits, links, usage)
    return Sending(tuple(replace(leg, size=leg.size * last) for leg in legs), early)


def loads_of(p: Pools, worker: tuple[str, ...]) -> tuple[Leg, ...]:
    """What a prefill worker reads of a cache that is there already: from storage into memory, and up to its GPUs."""
    i = p.inference
    if i.reuse == 0:
        return ()
    size = p.cache * i.reuse
    memories = [p.fabric.nearest(gpu, "memory") for gpu in worker]
    up = _leg("from memory", p, list(zip(memories, worker, strict=True)))
    read = () if i.reuse_from == "cpu" else (_with_storage(p, memories, "read"),)
    return tuple(replace(leg, size=size) for leg in (*read, up))


def _stored(p: Pools, pairs: Pairs) -> tuple[Leg, ...]:
    """Down to memory and into a storage system, out of it and up to the other GPU."""
    near = [(a, p.fabric.nearest(a, "memory")) for a, _ in pairs]
    far = [(p.fabric.nearest(b, "memory"), b) for _, b in pairs]
    return (
        _leg("to memory", p, near),
        _with_storage(p, [memory for _, memory in near], "write"),
        _with_storage(p, [memory for memory, _ in far], "read"),
        _leg("from memory", p, far),
    )


def _with_storage(p: Pools, memories: list[str], op: Op) -> Leg:
    """Between memories and the storage system, in equal shares and large requests."""
    system, stores = p.system, p.stores
    if system is None or stores is None:
        raise _no_way(p, "no storage system", "one of `prestep list storage`")
    links, usage = added([stores.path(memory, op) for memory in memories])
    request = REQUEST if system.page_cache else PART
    cap = system.throughput(request, max(1, system.threads) * len(memories), op)
    waits = system.latency + (system.metadata if op == "write" else 0.0)
    return Leg(f"{op} {system.name}", p.cache, cap, waits, links, usage)


def _path(p: Pools, pairs: Pairs) -> str:
    """The path that is asked for; "auto" is NVLink where it joins the GPUs, else RDMA, without NICs the hosts' memory.

    Raises
    ------
    InputError
        If the cluster has no NVLink between the GPUs, no NICs or no disks, which the path wants.
    """
    fabric, path = p.fabric, p.inference.path
    rows = [fabric.spread(a, b)[0] for a, b in pairs]
    kinds = {str(fabric.links.kind[row]) for some in rows for row in some}
    nvlink = bool(kinds) and all(
        kind.startswith(("nvlink", "nvswitch", "c2c")) for kind in kinds
    )
    if path == "nvlink" and not nvlink:
        found = f"links of {', '.join(sorted(kinds))}"
        raise _no_way(p, found, "GPUs that NVLink connects")
    if path == "auto":
        path = "nvlink" if nvlink else "rdma" if "nic" in fabric.nodes.kinds else "host"
    wanted = {"rdma": "nic", "nvme": "nvme"}.get(path)
    if wanted is not None and wanted not in fabric.nodes.kinds:
        found = f"{fabric.name}, a cluster without a node of kind {wanted}"
        raise _no_way(p, found, 'a cluster that has some, or path = "host"')
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
    found = f"{p.inference.path}: {found}"
    return InputError.of(p.scenario.where, "inference.path", found, expected)


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
