"""The host thread of a rank: issues operations in program order, ahead of the GPU up to a limit."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from sim.graph.opgraph import SYNC

if TYPE_CHECKING:
    from sim.engine.rendezvous import Rank


class HostThread:
    """Computes launch times ahead of simulated time; waits only where the real thread would.

    The thread blocks when ``limit`` launches are outstanding (the CUDA launch queue is full) and at explicit
    synchronisations. Between those its clock adds up host costs from ``start`` on; ``noise`` has a factor on each of
    them (shape (steps * operations,)). The end of every operation frees a place in the queue, but a launch time is
    computed only when a stream comes to it or the thread to a synchronisation: it follows from ends that are known, and
    an event for each of them was most of a run's.
    """

    def __init__(
        self,
        rank: Rank,
        steps: int,
        limit: int,
        start: float = 0.0,
        noise: Sequence[float] | None = None,
    ) -> None:
        program = rank.program
        self.rank, self.limit, self.noise = rank, limit, noise
        self.clock, self.total = start, steps * len(program)
        self.cost = program.host.tolist()
        waits = np.flatnonzero(program.kind == SYNC)
        self.waits = (np.arange(steps)[:, None] * len(program) + waits).ravel().tolist()
        self.next = 0
        # The synchronisation that comes next: nothing behind it is launched before it has ended.
        self.halt = self.waits[0] if self.waits else self.total
        self.watched = False

    def process(self) -> Generator[Any, Any, None]:
        """Comes to every synchronisation in time; what SimPy runs."""
        rank = self.rank
        for g, following in zip(
            self.waits, [*self.waits[1:], self.total], strict=False
        ):
            while not self.advance():
                yield rank.ended(self._blocking())
            self.clock = yield from _synchronize(rank, g, self._launched(g))
            self.next, self.halt = g + 1, following
        self.advance()

    def advance(self) -> bool:
        """Launches what there is room for in the queue; whether all up to the next synchronisation has been."""
        rank, cost, noise, limit = self.rank, self.cost, self.noise, self.limit
        launch, end, clock, n = rank.launch, rank.end, self.clock, len(self.cost)
        g, halt = self.next, self.halt
        while g < halt:
            if g >= limit:
                freed = end[g - limit]
                if freed < 0:
                    break
                if freed > clock:
                    clock = freed
            clock += cost[g % n] if noise is None else cost[g % n] * noise[g]
            launch[g] = clock
            g += 1
        self.next, self.clock = g, clock
        rank.publish(g)
        return g == halt and self._room(g)

    def watch(self) -> None:
        """A stream waits for a launch: the next place in the queue is used as soon as it is free."""
        if not self.watched and self.next < self.halt:
            self.watched = True
            self.rank.ended(self.next - self.limit).callbacks.append(self._freed)

    def _freed(self, _: simpy.Event) -> None:
        self.watched = False
        self.advance()
        if self.rank.waits_for_launch:
            self.watch()

    def _room(self, g: int) -> bool:
        """Whether the queue has room for an operation (behind the last one nothing comes)."""
        queued = g - self.limit
        return queued < 0 or g == self.total or self.rank.end[queued] >= 0

    def _blocking(self) -> int:
        """What the way to the next synchronisation waits for: its own place in the queue, or one before it."""
        queued = self.halt - self.limit
        if queued >= 0 and self.rank.end[queued] < 0:
            return queued
        return self.next - self.limit

    def _launched(self, g: int) -> float:
        """When the thread has come to a synchronisation, which is an operation as others are."""
        rank, i = self.rank, g % len(self.cost)
        if g >= self.limit:
            self.clock = max(self.clock, rank.end[g - self.limit])
        cost = self.cost[i] if self.noise is None else self.cost[i] * self.noise[g]
        rank.launch[g] = self.clock + cost
        return rank.launch[g]


def _synchronize(rank: Rank, g: int, clock: float) -> Generator[Any, Any, float]:
    """Waits at `clock` for all that synchronisation `g` names; when the thread goes on (s)."""
    i = g % len(rank.program)
    for d in rank.program.deps[i]:
        awaited = g - i + d
        if awaited < 0:
            continue
        if rank.end[awaited] < 0:
            yield rank.ended(awaited)
        clock = max(clock, rank.end[awaited])
    rank.start[g] = rank.launch[g]
    rank.finish(g, clock)
    return clock
