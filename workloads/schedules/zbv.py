"""ZBV: two chunks on a rank, placed as a V; no rank idles between its first and last action if F, I, W take equal time.

Qi et al. 2023, section 6, https://arxiv.org/abs/2401.10241; as torch's ScheduleZBVZeroBubble.
"""

from __future__ import annotations

from collections import Counter

from prestep.workloads.schedules import Action

PLACEMENT = "v"
CHUNKS = 2


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 2
) -> tuple[Action, ...]:
    """The actions of one rank. Fewer than 2P - 1 microbatches run the schedule of 2P - 1, the missing ones left out."""
    last, after = 2 * ranks - 1, ranks - rank
    full = max(last, microbatches)
    order = _Order((rank, last - rank))
    number = order.number
    order.run("F0", times=2 * after - 1)
    order.run("F1", "F0", times=rank)
    order.run("F1", "I1", "W1", times=after)
    while number["F", 1] < full:
        order.run("F0", times=number["F", 0] < full)
        order.run("I0", "W0", "F1", "I1", "W1")
    order.run("I0", "I1", times=rank)
    order.run("I0", "W0", times=after)
    order.run("W1", times=full - number["W", 1])
    order.run("W0", times=full - number["W", 0])
    return tuple(action for action in order.actions if action.microbatch < microbatches)


class _Order:
    """Actions in their order, and how many of each kind each chunk has."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages = stages
        self.number: Counter[tuple[str, int]] = Counter()
        self.actions: list[Action] = []

    def run(self, *words: str, times: int = 1) -> None:
        """Appends actions such as "F0": the next forward of chunk 0."""
        for word in words * times:
            kind, chunk = word[0], int(word[1])
            microbatch = self.number[kind, chunk]
            self.actions.append(Action(self.stages[chunk], kind, microbatch))
            self.number[kind, chunk] += 1
