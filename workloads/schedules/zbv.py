"""ZBV: two chunks on a rank, placed as a V; no rank idles between its first and last action if F, I, W take equal time.

Qi et al. 2023, section 6, https://arxiv.org/abs/2401.10241; as torch's ScheduleZBVZeroBubble.
"""

from __future__ import annotations

from prestep.workloads.schedules import Action
from prestep.workloads.schedules.dualpipe import Order

PLACEMENT = "v"
CHUNKS = 2


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 2
) -> tuple[Action, ...]:
    """The actions of one rank. Fewer than 2P - 1 microbatches run the schedule of 2P - 1, the missing ones left out."""
    last, after = 2 * ranks - 1, ranks - rank
    full = max(last, microbatches)
    order = Order((rank, last - rank))
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
    actions = (action for step in order.steps for action in step)
    return tuple(action for action in actions if action.microbatch < microbatches)
