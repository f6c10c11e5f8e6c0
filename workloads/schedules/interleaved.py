"""Interleaved 1F1B: several chunks on a rank shorten the bubble. Narayanan et al. 2021, https://arxiv.org/abs/2104.04473.

As torch's ScheduleInterleaved1F1B, which also takes microbatch counts that are no multiple of the ranks.
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
    yield from uneven("interleaved", ranks, microbatches, where)


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int
) -> tuple[Action, ...]:
    """The actions of one rank: two more warm-up forwards for every rank that follows."""
    return grouped(rank, ranks, microbatches, chunks, None)


def grouped(
    rank: int, ranks: int, microbatches: int, chunks: int, width: int | None
) -> tuple[Action, ...]:
    """The same with `width` microbatches of a chunk before the next one; the last group has what is left.

    Megatron's microbatch_group_size_per_vp_stage. None: as many as there are ranks, or a little more.
    """
    return walk(rank, ranks, microbatches, chunks, hop=2, split=False, width=width)
