"""Collectives played message by message: every rank, every step, on rates that all messages of a round share.

The exact opposite of a plan's closed form, at the price of n messages a step; steps of one round are columns. Used to
check plans, and to compare with simulators that do nothing else (`validation.bench.performance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.engine.fair_share import Incidence, rates


@dataclass(frozen=True, eq=False)
class Played:
    """Seconds until the last rank is done, and messages sent on the way."""

    time: float
    messages: int


@dataclass(frozen=True)
class Cost:
    """What a message costs beside its bytes on links.

    Attributes
    ----------
    start : float
        Seconds of the sender per message.
    packet : float
        Bytes that a switch takes in before it passes them on; 0: cut-through.
    header : float
        Bytes on the wire per byte of data.
    """

    start: float = 0.0
    packet: float = 0.0
    header: float = 1.0


def round_of(
    fabric: Any, src: np.ndarray, dst: np.ndarray, cost: Cost
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes/s and seconds of latency of messages under way together; ends are positions of nodes."""
    pair, rows, share = fabric.spreads(src, dst)
    start = np.searchsorted(pair, np.arange(len(src) + 1))
    speed, _ = rates(
        Incidence(start, rows, share), np.full(len(src), np.inf), fabric.links.bandwidth
    )
    latency = np.bincount(
        pair, weights=fabric.links.latency[rows] * share, minlength=len(src)
    )
    if cost.packet:
        # One packet's time for each link but the first and those that are as good as none beside the slowest.
        slow = fabric.links.bandwidth[rows] <= 2 * speed[pair]
        hops = np.bincount(pair, weights=share * slow, minlength=len(src))
        latency += np.maximum(0.0, hops - 1) * cost.packet / speed
    return speed / cost.header, latency + cost.start


def ring(
    fabric: Any,
    rings: Sequence[Sequence[int]] | np.ndarray,
    size: float,
    op: str = "all_reduce",
    cost: Cost = Cost(),
) -> Played:
    """Rings of equal length at once, one chunk a step; every message waits for the one before it.

    A rank sends a chunk once it has received it and its own last message has left.
    """
    at = np.array(rings)
    src, dst = at.ravel(), np.roll(at, -1, axis=1).ravel()
    speed, latency = (
        column.reshape(at.shape) for column in round_of(fabric, src, dst, cost)
    )
    n = at.shape[1]
    steps = (n - 1) * (2 if op == "all_reduce" else 1)
    sending, came = size / n / speed, np.zeros(at.shape)
    free = np.zeros(at.shape)
    for _ in range(steps):
        free = np.maximum(free, came) + sending
        came = np.roll(free + latency, 1, axis=1)
    return Played(float(came.max()), steps * at.size)


def halving_doubling(
    fabric: Any,
    groups: Sequence[Sequence[int]] | np.ndarray,
    size: float,
    cost: Cost = Cost(),
) -> Played:
    """All-reduce by exchanging halves with partners ever farther, and back; groups of a power of two, all at once."""
    at = np.array(groups)
    n = at.shape[1]
    time, messages = 0.0, 0
    for step in range(n.bit_length() - 1):
        partner = at[:, np.arange(n) ^ (1 << step)]
        speed, latency = round_of(fabric, at.ravel(), partner.ravel(), cost)
        # Reduce-scatter and all-gather both have this exchange, of half as much with every step.
        time += 2 * float((size / 2 ** (step + 1) / speed + latency).max())
        messages += 2 * at.size
    return Played(time, messages)


def hierarchical(
    fabric: Any,
    hosts: Sequence[Sequence[int]] | np.ndarray,
    size: float,
    chunks: int,
    cost: Cost = Cost(),
) -> Played:
    """All-reduce of hosts: rings inside, halving and doubling between ranks of one place, `chunks` in a pipeline.

    Both dimensions work at once on different chunks, each on one at a time.
    """
    at = np.array(hosts)
    part = size / chunks
    inner = ring(fabric, at, part, "reduce_scatter", cost)
    outer = halving_doubling(fabric, at.T, part / at.shape[1], cost)
    inside, between = 0.0, 0.0
    for _ in range(
        chunks
    ):  # scattered inside one after the other, reduced between as they come
        inside += inner.time
        between = max(between, inside) + outer.time
    gathered = inside
    for chunk in range(chunks):  # gathered inside again, each once it is back
        back = between - (chunks - 1 - chunk) * outer.time
        gathered = max(gathered, back) + inner.time
    return Played(gathered, chunks * (2 * inner.messages + outer.messages))
