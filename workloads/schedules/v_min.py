"""V-Min: a V of two chunks that holds a third of the activations of 1F1B, and idles a little more.

Qi et al. 2024, Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, appendix: offsets of
the block; as AMD's Primus runs it (pp_algorithm v-min).
"""

from __future__ import annotations

from prestep.workloads.schedules import Action
from prestep.workloads.schedules._controllable import Block, rows

PLACEMENT = "v"
CHUNKS = 2


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 2
) -> tuple[Action, ...]:
    """The actions of one rank."""
    return rows(_block, ranks, microbatches)[rank]


def _block(rank: int, ranks: int) -> Block:
    """Slots of the first microbatch: every step takes one slot."""
    # With a multiple of three ranks two passes would meet in one slot: the backward waits for two more.
    wait = 2 if ranks % 3 == 0 else 0
    return {
        "F0": rank,
        "F1": 2 * ranks - 1 - rank,
        "I1": 2 * ranks + wait + rank,
        "I0": 4 * ranks - 1 + wait - rank,
    }
