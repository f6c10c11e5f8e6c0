"""The operations of a pipeline's stages, the same in every step and data-parallel rank, and what waits for what.

Kinds are those of ByteDance's StragglerAnalysis (OSDI 2025): forward-compute, backward-compute, forward-send,
forward-recv, backward-send, backward-recv, params-all-gather, grads-reduce-scatter, separate-grads-all-reduce,
layernorm-grads-all-reduce, embedding-grads-all-reduce, gc, optimizer-clip-main-grad, optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from prestep.sim.errors import InputError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE, NORMS = "separate-grads-all-reduce", "layernorm-grads-all-reduce"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
COLLECTION, OPTIMIZER = "gc", "optimizer"
# Of the stages: who sends what to whom. The chunk of the model that a send leads to is the next, or the one before.
PAIRS = {"forward": (FORWARD, 1), "backward": (BACKWARD, -1)}
TRANSFERS = tuple(f"{way}-{end}" for way in PAIRS for end in ("send", "recv"))
# Collectives in which all data-parallel ranks meet.
MEETS_DP = (GATHER, SCATTER, SEPARATE, CLIP)
COMMUNICATION = (*TRANSFERS, GATHER, SCATTER, SEPARATE, NORMS, EMBEDDING, CLIP)
KINDS = (FORWARD, BACKWARD, *COMMUNICATION, COLLECTION, OPTIMIZER)


class Slot(NamedTuple):
    """One operation of a stage: its kind, its number among those of the kind, its chunk of the stage and the model."""

    stage: int
    kind: str
    number: int
    chunk: int = -1
    model_chunk: int = -1


@dataclass(frozen=True)
class Operations:
    """What a job did; times in seconds of a step.

    Attributes
    ----------
    slots : tuple of Slot
        Operations of a step, each done by every data-parallel rank.
    start, end : np.ndarray
        (slot, step, data-parallel rank).
    steps : tuple of int
        Their numbers.
    """

    name: str
    slots: tuple[Slot, ...]
    steps: tuple[int, ...]
    start: np.ndarray = field(repr=False)
    end: np.ndarray = field(repr=False)

    @property
    def stages(self) -> int:
        return max(slot.stage for slot in self.slots) + 1

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return int(self.start.shape[2])

    @property
    def step_times(self) -> np.ndarray:
        """Recorded seconds of every step."""
        times: np.ndarray = self.end.max((0, 2)) - self.start.min((0, 2))
        return times

    @cached_property
    def graph(self) -> Graph:
        """What waits for what.

        Raises
        ------
        InputError
            If sends and receives do not match, or an operation that others need is missing.
        """
        return _Builder(self).built()


@dataclass(frozen=True)
class Graph:
    """Waiting among slots, by their numbers.

    Attributes
    ----------
    before : tuple
        Slots that have to end before each starts.
    meetings : tuple
        Slots that begin together, in an order in which nothing comes before what it waits for.
    meets_dp : frozenset
        Slots in which all data-parallel ranks meet.
    transfers : frozenset
        Slots whose time is that of a transfer once all have come.
    """

    before: tuple[tuple[int, ...], ...]
    meetings: tuple[tuple[int, ...], ...]
    meets_dp: frozenset[int]
    transfers: frozenset[int]


class _Builder:
    """Finds what waits for what in the order that the first rank recorded in the first step."""

    def __init__(self, job: Operations) -> None:
        self.job = job
        self.number = {slot[:3]: i for i, slot in enumerate(job.slots)}
        self.before: list[list[int]] = [[] for _ in job.slots]
        self.start = job.start[:, 0, 0]
        self.end = job.end[:, 0, 0]
        self.groups: list[tuple[int, ...]] = []

    def built(self) -> Graph:
        for stage in range(self.job.stages):
            self._streams(stage)
            self._gathers(stage)
            self._ending(stage)
        for way in PAIRS:
            self._transfers(way)
        ends = self._all(EMBEDDING)
        self.groups += [tuple(ends)] if ends else []
        self.groups.append(tuple(self._all(CLIP)))
        synchronous = {i for i, s in enumerate(self.job.slots) if s.kind in MEETS_DP}
        grouped = {i for group in self.groups for i in group}
        alone = [(i,) for i in range(len(self.before)) if i not in grouped]
        return Graph(
            tuple(map(tuple, self.before)),
            tuple(self._sorted([*self.groups, *alone])),
            frozenset(synchronous),
            frozenset(grouped | synchronous),
        )

    def _all(self, kind: str) -> list[int]:
        return [i for i, slot in enumerate(self.job.slots) if slot.kind == kind]

    def _of(self, stage: int, *kinds: str) -> list[int]:
        """Slots of a stage in the order in which they started."""
        slots = [
            i
            for i, slot in enumerate(self.job.slots)
            if slot.stage == stage and slot.kind in kinds
        ]
        return sorted(slots, key=lambda i: (self.start[i], self.job.slots[i].number))

    def _chain(self, slots: Sequence[int]) -> None:
        for first, second in pairwise(slots):
            self.before[second].append(first)

    def _streams(self, stage: int) -> None:
        """One stream of kernels, one of each kind of transfer, one of data-parallel collectives."""
        compute = self._of(stage, FORWARD, BACKWARD)
        self._chain(compute)
        for kind in TRANSFERS:
            self._chain(self._of(stage, kind))
        self._chain(self._of(stage, GATHER, SCATTER))
        kinds = [self.job.slots[i].kind for i in compute]
        first = kinds.index(BACKWARD) if BACKWARD in kinds else 0
        if first >= 2:  # the first gradients are exchanged one forward pass ahead
            for kind in ("backward-recv", "backward-send"):
                for slot in self._of(stage, kind)[:1]:
                    self.before[slot].append(compute[first - 2])

    def _gathers(self, stage: int) -> None:
        """A chunk's first forward pass needs its parameters; with overlap its gradients are reduced after its last."""
        overlapped = bool(self._all(SEPARATE))
        for slot in self._of(stage, GATHER):
            if passes := self._passes(stage, FORWARD, slot):
                self.before[passes[0]].append(slot)
        for slot in self._of(stage, SCATTER) if overlapped else ():
            if passes := self._passes(stage, BACKWARD, slot):
                self.before[slot].append(passes[-1])

    def _passes(self, stage: int, kind: str, slot: int) -> list[int]:
        """Passes through the chunk that a collective belongs to."""
        chunk = self.job.slots[slot].chunk
        return [i for i in self._of(stage, kind) if self.job.slots[i].chunk == chunk]

    def _ending(self, stage: int) -> None:
        """What follows the last pass, one after the other."""
        last = max(self._of(stage, FORWARD, BACKWARD), key=lambda i: self.end[i])
        scatters = self._of(stage, SCATTER)
        overlapped = bool(self._all(SEPARATE))
        tail = [*self._of(stage, NORMS), *self._of(stage, EMBEDDING)]
        tail += self._of(stage, SEPARATE) if overlapped else scatters
        tail += [*self._of(stage, CLIP), *self._of(stage, OPTIMIZER)]
        collected = self._of(stage, COLLECTION) or [last]
        if collected != [last]:
            self.before[collected[0]].append(last)
        self._chain([*collected, *tail])
        if overlapped and scatters and tail:
            self.before[tail[0]].append(scatters[-1])

    def _transfers(self, way: str) -> None:
        """Every pass but those of the first chunk needs what the chunk before it sends."""
        kind, ahead = PAIRS[way]
        for stage in range(self.job.stages):
            peer = (stage + ahead) % self.job.stages
            sending = self._fed(stage, kind, ahead)
            receiving = self._fed(peer, kind, -ahead)
            sends = self._of(stage, f"{way}-send")
            receives = self._of(peer, f"{way}-recv")
            self._matched(stage, way, sends, sending)
            self._matched(peer, way, receives, receiving)
            self.groups += list(zip(sends, receives, strict=True))
            for send, done in zip(sends, sending, strict=True):
                self.before[send].append(done)
            self._received(receives, receiving, self._of(peer, kind))

    def _received(
        self, receives: Sequence[int], needing: Sequence[int], passes: list[int]
    ) -> None:
        """A pass waits for what it receives; that is received after the pass before it."""
        for receive, needs in zip(receives, needing, strict=True):
            self.before[needs].append(receive)
            self.before[receive] += passes[: passes.index(needs)][-1:]

    def _fed(self, stage: int, kind: str, ahead: int) -> list[int]:
        """Passes of a stage whose chunk has another so far ahead."""
        chunks = {slot.model_chunk for slot in self.job.slots if slot.kind == kind}
        passes = self._of(stage, kind)
        return [i for i in passes if self.job.slots[i].model_chunk + ahead in chunks]

    def _matched(
        self, stage: int, way: str, transfers: Sequence[int], passes: Sequence[int]
    ) -> None:
        if len(transfers) != len(passes):
            found = f"{len(transfers)} transfers of {len(passes)} {way} passes"
            expected = "one for each pass that another stage feeds"
            raise InputError.of(self.job.name, f"stage {stage}", found, expected)

    def _sorted(self, groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """Groups in an order in which nothing comes before what it waits for."""
        left, done = list(groups), set[int]()
        while left:
            ready = [
                g for g in left if all(d in done for i in g for d in self.before[i])
            ]
            if not ready:
                found = ", ".join(self.job.slots[i].kind for i in left[0])
                raise InputError.of(
                    self.job.name, "", f"{found} wait for themselves", "an order"
                )
            yield from ready
            done.update(i for group in ready for i in group)
            left = [group for group in left if group[0] not in done]
