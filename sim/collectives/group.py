"""A communicator: ranks in the order in which NCCL would string them, and what connects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.collectives import paths
from sim.errors import InputError, Mistake, unknown


@dataclass(frozen=True, eq=False)
class Group:
    """Ranks by host.

    Attributes
    ----------
    ranks : tuple of str
        All GPUs, hosts one after the other, each in the fabric's order.
    hosts : tuple of tuple of str
        GPUs of each host.
    local, remote : float
        Bytes/s of the slowest GPU's NVLinks (or best local way) and of the slowest way between hosts (inf if one host).
    local_latency, remote_latency : float
        Seconds of one hop's route inside a host, and between hosts.
    local_kind, remote_kind : str
        Kinds of those slowest links ("nvlink", "nic"); "" where there is none.
    """

    ranks: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...]
    local: float
    remote: float
    local_latency: float
    remote_latency: float
    local_kind: str
    remote_kind: str

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def per_node(self) -> float:
        return self.n / self.nodes


def group_of(fabric: Any, ranks: Sequence[str]) -> Group:
    """The group of `ranks`; their order does not matter.

    Raises
    ------
    InputError
        If a rank is not a GPU of the fabric, or named twice.
    """
    index = paths.index_of(fabric)
    key = tuple(ranks)
    if key not in index.groups:
        _check(fabric, index, key)
        ordered = tuple(sorted(key, key=index.order.__getitem__))
        if ordered not in index.groups:
            index.groups[ordered] = _build(fabric, ordered)
        index.groups[key] = index.groups[ordered]
    return index.groups[key]  # type: ignore[no-any-return]


def _check(fabric: Any, index: paths.Index, ranks: tuple[str, ...]) -> None:
    mistakes = [unknown(fabric.name, "ranks", rank, index.order) for rank in ranks if rank not in index.order]
    twice = [rank for rank in dict.fromkeys(ranks) if ranks.count(rank) > 1] if len(set(ranks)) < len(ranks) else []
    mistakes += [Mistake(fabric.name, "ranks", f"{rank} twice", "every GPU once") for rank in twice]
    if not ranks:
        mistakes.append(Mistake(fabric.name, "ranks", "no GPU", "at least one"))
    if mistakes:
        raise InputError(mistakes)


def _build(fabric: Any, ranks: tuple[str, ...]) -> Group:
    by_host: dict[str, list[str]] = {}
    for rank in ranks:
        by_host.setdefault(str(fabric.host_of(rank)), []).append(rank)
    hosts = tuple(tuple(gpus) for gpus in by_host.values())
    inside = [(g[i], g[(i + 1) % len(g)]) for g in hosts if len(g) > 1 for i in range(len(g))]
    between = [
        (a[k % len(a)], b[k % len(b)])
        for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True)
        if len(hosts) > 1
        for k in range(max(len(a), len(b)))
    ]
    local, local_kind, local_latency = _slowest(fabric, inside)
    remote, remote_kind, remote_latency = _slowest(fabric, between)
    return Group(ranks, hosts, local, remote, local_latency, remote_latency, local_kind, remote_kind)


def _slowest(fabric: Any, pairs: list[tuple[str, str]]) -> tuple[float, str, float]:
    """Bandwidth and kind of the narrowest of these ways, and the longest latency; (inf, "", 0) of none."""
    best, kind, delay = float("inf"), "", 0.0
    for src, dst in pairs:
        links, share = paths.split(fabric, src, dst)
        width = fabric.links.bandwidth[links] / share
        slot = int(np.argmin(width))
        if width[slot] < best:
            best, kind = float(width[slot]), str(fabric.links.kind[links[slot]])
        delay = max(delay, paths.latency(fabric, src, dst))
    return best, kind, delay
