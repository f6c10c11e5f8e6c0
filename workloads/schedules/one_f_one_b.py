"""1F1B: after a warm-up, one backward for each forward. Narayanan et al. 2021, https://arxiv.org/abs/2104.04473.

Stage s of P runs min(M, P - s) forwards ahead, so it never holds more than P - s microbatches, where GPipe holds M.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    ahead = min(microbatches, ranks - rank)
    _warm_up(record, ahead)
    _steady(record, ahead, microbatches)
    _cool_down(record, microbatches - ahead, microbatches)
    record.hook("REDUCE_GRAD", rank)
    return record.done()


def _warm_up(record: Recorder, ahead: int) -> None:
    """Forwards alone; the last result is sent together with the first receive of a gradient."""
    sent = None
    for forward in range(ahead):
        record.wait(record.post(record.receives(Action(record.rank, "F", forward))))
        record.compute(Action(record.rank, "F", forward))
        record.wait(sent)
        sent = (
            record.post(record.sends(Action(record.rank, "F", forward)))
            if forward < ahead - 1
            else None
        )


def _steady(record: Recorder, ahead: int, microbatches: int) -> None:
    """One backward for each forward, then one more backward."""
    steady = microbatches - ahead
    for backward in range(steady + 1):
        forward = ahead + backward
        arrives = record.receives(Action(record.rank, "B", backward))
        record.wait(
            record.post(record.sends(Action(record.rank, "F", forward - 1)) + arrives)
        )
        record.compute(Action(record.rank, "B", backward))
        if backward < steady:
            arrives = record.receives(Action(record.rank, "F", forward))
            record.wait(
                record.post(record.sends(Action(record.rank, "B", backward)) + arrives)
            )
            record.compute(Action(record.rank, "F", forward))


def _cool_down(record: Recorder, steady: int, microbatches: int) -> None:
    """Backwards alone, after the one of microbatch `steady`."""
    sent = record.post(record.sends(Action(record.rank, "B", steady)))
    for backward in range(steady + 1, microbatches):
        record.wait(record.post(record.receives(Action(record.rank, "B", backward))))
        record.compute(Action(record.rank, "B", backward))
        record.wait(sent)
        sent = record.post(record.sends(Action(record.rank, "B", backward)))
    record.wait(sent)
