"""How bytes spread over the links of a fabric, and what the planner remembers about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from prestep.sim.graph.opgraph import by_link
from prestep.topologies.core.checks import joined

T = TypeVar("T")
# Above so many flows whole columns are quicker than pair by pair.
MANY = 32


@dataclass
class Index:
    """One fabric's memory; `plans` is the cache of finished plans."""

    order: dict[str, int] = field(default_factory=dict)
    groups: dict[Any, Any] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict)
    values: dict[Any, Any] = field(default_factory=dict)


def index_of(fabric: Any) -> Index:
    """The index of `fabric`, made on first use; the fabric holds it, and a changed copy has its own."""
    memory = fabric.memory
    if "collectives" not in memory:
        order = {gpu: i for i, gpu in enumerate(fabric.gpus)}
        memory["collectives"] = Index(order=order)
    return memory["collectives"]  # type: ignore[no-any-return]


def once(fabric: Any, key: Any, make: Callable[[], T]) -> T:
    """What `make` returns, made once per fabric and key: what does not depend on the size of a collective."""
    return _kept(index_of(fabric).values, key, make)


def once_routed(fabric: Any, key: Any, make: Callable[[], T]) -> T:
    """`once` for what follows from routes alone: made once for all fabrics that share them, whatever their speeds."""
    return _kept(_by_routes(fabric, "routed"), key, make)


def _kept(values: dict[Any, Any], key: Any, make: Callable[[], T]) -> T:
    """What a cache has under a key, which may take long to hash."""
    value = values.get(key)
    if value is None:
        value = values[key] = make()
    return value


def split(fabric: Any, src: str, dst: str) -> tuple[np.ndarray, np.ndarray]:
    """Links from `src` to `dst` and the share of the bytes on each (GPU - 5 of 18 links - switch 0, ...)."""
    splits = _splits(fabric)
    if (src, dst) not in splits:
        splits[src, dst] = fabric.spread(src, dst)
    return splits[src, dst]


def _splits(fabric: Any) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Splits that are known."""
    return _by_routes(fabric, "splits")


def _by_routes(fabric: Any, name: str) -> dict[Any, Any]:
    """A cache that all fabrics with the same routes share, where no routing policy has a say in them."""
    adaptive = fabric.routing.policy == "adaptive"
    shared = fabric.wiring if adaptive else fabric.memory
    return shared.setdefault(name, {})  # type: ignore[no-any-return]


def gather(
    fabric: Any, hops: list[tuple[str, str, float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Links and bytes on each of flows (source, destination, bytes), summed; links ascending."""
    if len(hops) > MANY:
        src, dst, each = zip(*hops, strict=True)
        ends = fabric.positions(src), fabric.positions(dst)
        return carried(fabric, *ends, np.array(each))
    parts = [(split(fabric, src, dst), amount) for src, dst, amount in hops]
    return by_link([(links, share * amount) for (links, share), amount in parts])


def carried(
    fabric: Any, src: np.ndarray, dst: np.ndarray, each: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`gather` of columns: positions of both ends, and bytes."""
    # The channels of a ring go between the same neighbours again and again: every pair is routed once.
    size = len(fabric.nodes)
    pairs, which = np.unique(src * size + dst, return_inverse=True)
    if len(pairs) < len(src):
        (src, dst), each = np.divmod(pairs, size), np.bincount(which, weights=each)
    return fabric.carried(src, dst, each)  # type: ignore[no-any-return]


def used(loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Links that carry anything, and bytes on each."""
    links = np.flatnonzero(
        loads != 0
    )  # of floats themselves it takes six times as long
    return links, loads[links]


def spreads(
    fabric: Any, pairs: Sequence[tuple[str, str]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`split` of many pairs: number of the pair, link and share, sorted by pair and link."""
    if len(pairs) > MANY:
        src, dst = zip(*pairs, strict=True)
        return fabric.spreads(fabric.positions(src), fabric.positions(dst))  # type: ignore[no-any-return]
    splits = _splits(fabric)
    fabric.prefetch([pair for pair in pairs if pair not in splits])
    parts = [split(fabric, src, dst) for src, dst in pairs]
    number = np.repeat(np.arange(len(parts)), [len(links) for links, _ in parts])
    empty = [(np.empty(0, dtype=np.int64), np.empty(0))]
    links, share = (
        np.concatenate([part[k] for part in parts or empty]) for k in (0, 1)
    )
    return number, links, share


def domains(fabric: Any) -> dict[str, int]:
    """Number of the NVLink domain of every GPU: a host, or a rack whose hosts share NVSwitches."""
    wiring = fabric.wiring
    if "domains" not in wiring:
        wiring["domains"] = _domains(fabric)
    return wiring["domains"]  # type: ignore[no-any-return]


def _domains(fabric: Any) -> dict[str, int]:
    # Every node of a host hangs together with the host's first.
    above, (src, dst) = fabric.nodes.above, fabric.ends
    rows = fabric.links.of_kind("nvlink")
    label = joined(len(above), above[src[rows]], above[dst[rows]])[above]
    gpus = fabric.gpus
    return dict(zip(gpus, label[fabric.positions(gpus)].tolist(), strict=True))
