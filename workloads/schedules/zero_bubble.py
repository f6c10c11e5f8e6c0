"""Interleaved zero bubble, ZB1P: weight gradients fill the bubble. Qi et al. 2023, https://arxiv.org/abs/2401.10241.

As torch's ScheduleInterleavedZeroBubble: one warm-up forward per hop; rank r runs the weight gradient of backward j
right after backward j + r, and its last r weight gradients at the very end. The idle steps that torch writes into its
table (None) are dropped again before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.schedules import Action
from prestep.workloads.schedules._rounds import uneven, walk

PLACEMENT = "loop"


def problems(
    ranks: int, microbatches: int, chunks: int, where: str
) -> Iterator[Mistake]:
    """The microbatches must divide into rounds."""
    yield from uneven("zero-bubble", ranks, microbatches, where)


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int
) -> tuple[Action, ...]:
    """The actions of one rank."""
    return walk(rank, ranks, microbatches, chunks, hop=1, split=True)
