"""All-to-alls whose messages differ (all_to_allv: experts, sparse embeddings), as NCCL sends and receives in a group.

The messages go the ways of an even all-to-all, each cut by its own size. A rank is done when its fullest CTA and its
fullest link are; the slowest rank decides. Counts are shares: `size` is what a rank sends on average.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim.collectives.algorithms import pairwise
from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, transport
from prestep.sim.errors import InputError

OP = "all_to_all"


def read(path: Path, ranks: int) -> np.ndarray:
    """Shares of a CSV file: of what a rank sends on average, what rank i sends to rank j; even: 1 / ranks each.

    Parameters
    ----------
    path
        A line of `ranks` numbers for every sender; or one line, what each receiver gets from every sender.

    Raises
    ------
    InputError
        If it has another shape, or a number below 0, or nothing but zeros.
    """
    rows = _numbers(path)
    if len(rows) == 1:
        rows *= ranks
    widths = {len(row) for row in rows}
    if len(rows) != ranks or widths != {ranks}:
        found = f"{len(rows)} lines of {', '.join(map(str, sorted(widths)))} numbers"
        expected = f"{ranks} lines of {ranks} numbers, or one line"
        hint = "--ranks or --gpus says how many ranks there are"
        raise InputError.of(str(path), "--counts", found, expected, hint)
    counts = np.array(rows)
    if not np.isfinite(counts).all() or counts.min() < 0 or counts.sum() == 0:
        expected = "numbers of 0 or more, and one above 0"
        raise InputError.of(str(path), "--counts", "others", expected)
    return np.asarray(counts * (ranks / counts.sum()))


def _numbers(path: Path) -> list[list[float]]:
    try:
        lines = csv.reader(path.read_text(encoding="utf-8").splitlines())
        return [[float(cell) for cell in line] for line in lines if line]
    except (OSError, ValueError, csv.Error) as error:
        expected = "a CSV file of numbers, without a head"
        raise InputError.of(str(path), "--counts", str(error)[:100], expected) from None


def plan(
    size: float, ranks: Sequence[str], fabric: Any, nccl: Nccl, shares: np.ndarray
) -> Plan:
    """The plan of an all-to-all of which a rank sends `size` bytes on average, by `shares` of these ranks."""
    call = call_of(OP, size, ranks, fabric, nccl)
    places = [call.ranks.index(gpu) for gpu in call.group.ranks]
    even = pairwise.messages_of(call)
    messages = Uneven(**vars(even), shares=shares[np.ix_(places, places)])
    plan = pairwise.planned(messages, call, messages.used(fabric))
    return replace(plan, evidence="guess")  # nobody measured uneven ones here


@dataclass(frozen=True, eq=False)
class Uneven(pairwise.Messages):
    """Messages by sender and receiver; `shares` in the group's order."""

    shares: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def message(self) -> float:
        """Bytes of the largest message to another rank: by it the protocol is chosen."""
        return self.size * float(self._others.max(initial=0.0))

    @cached_property
    def _others(self) -> np.ndarray:
        return self.shares * (1 - np.eye(len(self.shares)))

    def load(self, self_copy: float, begin: int = 0) -> np.ndarray:
        """Bytes each CTA of the busiest GPU moves from round `begin` on, out or in, whichever is more."""
        ways = (self.shares, self.shares.T)
        both = (self._loads(way, self_copy, begin) for way in ways)
        most = np.maximum(*both)
        return np.asarray(most[int(np.argmax(most.max(axis=1)))])

    def _loads(self, shares: np.ndarray, self_copy: float, begin: int) -> np.ndarray:
        """Bytes by rank and CTA, of what it sends to the rank so many rounds on."""
        n, ctas = len(shares), self.graph.p2p
        parts_of = lru_cache(maxsize=None)(self._parts)
        load = np.zeros((n, ctas))
        for round_ in range(begin, n):
            first, weight = protocols.first_channel(round_, ctas), 1.0
            if round_ == 0:
                weight = self_copy
            for rank in range(n):
                size = self.size * float(shares[rank, (rank + round_) % n])
                parts = parts_of(size)
                at = (first + np.arange(parts)) % ctas
                load[rank, at] += weight * size / parts
        return load

    def _parts(self, size: float) -> int:
        group, buffer = self.group, self.settings.buffer_size
        return protocols.message_channels(
            size, group.n, self.graph, group.nodes, buffer
        )

    def _posted(self) -> int:
        """Messages to other hosts that the busiest rank's proxy posts."""
        host = np.repeat(np.arange(self.group.nodes), list(map(len, self.group.hosts)))
        away = (self.shares > 0) & (host[:, None] != host[None, :])
        return int(away.sum(axis=1).max(initial=0))

    def used(self, fabric: Any) -> tuple[np.ndarray, np.ndarray]:
        """Links, and bytes on each per byte that a rank sends on average."""
        names = self.group.ranks
        flows = [
            (names[a], names[b], float(self._others[a, b]))
            for a, b in np.argwhere(self._others > 0).tolist()
        ]
        if not self.settings.pxn_disable:
            flows = transport.relayed(flows, self.group)
        return paths.gather(fabric, self.group.expand(fabric, flows))
