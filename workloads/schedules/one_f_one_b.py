"""1F1B: after a warm-up, one backward for each forward. Narayanan et al. 2021, https://arxiv.org/abs/2104.04473.

Stage s of P runs min(M, P - s) forwards ahead, so it never holds more than P - s microbatches, where GPipe holds M.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from prestep.sim.errors import Mistake
from prestep.workloads.schedules import Action
from prestep.workloads.schedules.runtime import Operation, Recorder

NAME = "1f1b"
PLACEMENT = "loop"
CHUNKS = 1
# Some frameworks run it with fewer microbatches than stages, the last ranks idle in turn.
FEW = True


def problems(
    ranks: int, microbatches: int, chunks: int, where: str
) -> Iterator[Mistake]:
    """Schedule1F1B refuses fewer microbatches than stages."""
    if microbatches < ranks:
        expected = f"at least {ranks}, the pipeline stages, for 1f1b"
        yield Mistake(where, "training.microbatches", str(microbatches), expected)


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Action, ...]:
    """The actions of one rank."""
    ahead = min(microbatches, ranks - rank)
    order = [Action(rank, "F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        order.append(Action(rank, "B", microbatch))
        if ahead + microbatch < microbatches:
            order.append(Action(rank, "F", ahead + microbatch))
    return tuple(order)


def operations(
    rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Operation, ...]:
    """As torch's Schedule1F1B: between warm-up and cool-down every send shares a batch with the opposite receive."""
    record = Recorder(rank, range(ranks))
    order = actions(rank, ranks, microbatches)
    before: Action | None = None
    sent: int | None = None
    for action, after in zip_longest(order, order[1:]):
        # A result waits for the next action's input to travel with it where that is of the other kind.
        turns = before is not None and before.kind != action.kind
        results = record.sends(before) if before and turns else ()
        record.wait(record.post((*results, *record.receives(action))))
        record.compute(action)
        record.wait(sent)
        alone = after is None or after.kind == action.kind
        sent, before = record.post(record.sends(action)) if alone else None, action
    record.wait(sent)
    record.hook("REDUCE_GRAD", rank)
    return record.done()
