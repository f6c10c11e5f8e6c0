"""ZBV: two chunks on a rank, placed as a V; no rank idles between its first and last action if F, I, W take equal time.

Qi et al. 2023, section 6, https://arxiv.org/abs/2401.10241; as torch's ScheduleZBVZeroBubble.
"""

from __future__ import annotations

from collections import Counter

from workloads.schedules import Action

PLACEMENT = "v"
CHUNKS = 2


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 2
) -> tuple[Action, ...]:
    """The actions of one rank. Fewer than 2P - 1 microbatches run the schedule of 2P - 1, the missing ones left out."""
    last = 2 * ranks - 1
    stages = (rank, last - rank)
    number: Counter[tuple[str, int]] = Counter()
    order: list[Action] = []

    def run(*words: str) -> None:
        """Append actions such as "F0": the next forward of chunk 0."""
        for word in words:
            key = (word[0], int(word[1]))
            order.append(Action(stages[key[1]], key[0], number[key]))
            number[key] += 1

    full = max(last, microbatches)
    run(*["F0"] * (2 * (ranks - rank) - 1))
    run(*["F1", "F0"] * rank)
    run(*["F1", "I1", "W1"] * (ranks - rank))
    while number["F", 1] < full:
        run(*["F0"] * (number["F", 0] < full), "I0", "W0", "F1", "I1", "W1")
    run(*["I0", "I1"] * rank)
    run(*["I0", "W0"] * (ranks - rank))
    run(*["W1"] * (full - number["W", 1]))
    run(*["W0"] * (full - number["W", 0]))
    return tuple(action for action in order if action.microbatch < microbatches)
