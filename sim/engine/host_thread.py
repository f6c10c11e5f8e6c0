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
    explicit synchronisations. Between those its clock simply adds up host costs, from ``start`` on;
    ``noise`` has a factor on each of them (shape (steps * operations,)).
    """
    program = rank.program
    n = len(program)
    cost = program.host.tolist()
    sync = program.kind == SYNC
    clock = start
    for step in range(steps):
        base = step * n
        for i in range(n):
            g = base + i
            if g >= limit:
                queued = g - limit
                if rank.end[queued] < 0:
                    rank.publish(g)
                    yield rank.ended(queued)
                clock = max(clock, rank.end[queued])
            clock += cost[i] if noise is None else cost[i] * noise[g]
            rank.launch[g] = clock
            if sync[i]:
                rank.publish(g)
                for d in program.deps[i]:
                    if base + d < 0:
                        continue
                    if rank.end[base + d] < 0:
                        yield rank.ended(base + d)
                    clock = max(clock, rank.end[base + d])
                rank.start[g] = rank.launch[g]
                rank.finish(g, clock)
    rank.publish(steps * n)
