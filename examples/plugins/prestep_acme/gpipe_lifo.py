"""GPipe, but backward passes run last microbatch first."""

from __future__ import annotations

from prestep.workloads.schedules import Action

PLACEMENT = "loop"  # rank r holds the stages r, r + ranks, ...
CHUNKS = 1  # the only number of stages per rank it works with


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Action, ...]:
    """What one rank computes, in order."""
    forward = [Action(rank, "F", microbatch) for microbatch in range(microbatches)]
    backward = [
        Action(rank, "B", microbatch) for microbatch in reversed(range(microbatches))
    ]
    return (*forward, *backward)
