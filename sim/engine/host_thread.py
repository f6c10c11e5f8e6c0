"""The host thread of a rank: issues operations in program order, ahead of the GPU up to a limit."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from sim.graph.opgraph import SYNC

if TYPE_CHECKING:
    from sim.engine.rendezvous import Rank


def host_thread(
    rank: Rank,
    steps: int,
    limit: int,
    start: float = 0.0,
    noise: Sequence[float] | None = None,
) -> Generator[Any, Any, None]:
    """Computes launch times ahead of simulated time; waits only where the real thread would.

    The thread blocks when ``limit`` launches are outstanding (the CUDA launch queue is full) and at
    explicit synchronisations. Between those its clock adds up host costs from ``start`` on; ``noise`` has a factor
    on each of them (shape (steps * operations,)).
    """
    program = rank.program
    n = len(program)
    cost, sync = program.host.tolist(), (program.kind == SYNC).tolist()
    clock = start
    for g in range(steps * n):
        queued = g - limit
        if queued >= 0:
            if rank.end[queued] < 0:
                rank.publish(g)
                yield rank.ended(queued)
            clock = max(clock, rank.end[queued])
        i = g % n
        clock += cost[i] if noise is None else cost[i] * noise[g]
        rank.launch[g] = clock
        if sync[i]:
            rank.publish(g)
            clock = yield from _synchronize(rank, g, clock)
    rank.publish(steps * n)


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
