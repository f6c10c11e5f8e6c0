"""V-Half: a V of two chunks that holds half the activations of 1F1B, and idles less.

Qi et al. 2024, Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, appendix: offsets of
the block; as AMD's Primus runs it (pp_algorithm v-half).
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
    """Slots of the first microbatch: a step forward takes two slots down the V and one up, backward the same."""
    # With an even number of ranks two passes would meet in one slot: the backward waits for half a period.
    wait = 3 if ranks % 2 == 0 else 0
    return {
        "F0": 2 * rank,
        "F1": 3 * ranks - 2 - rank,
        "I1": 3 * ranks - 1 + wait + 2 * rank,
        "I0": 6 * ranks - 2 + wait - rank,
    }
