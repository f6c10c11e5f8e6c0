"""GPipe: all forwards, then all backwards. Huang et al. 2019, https://arxiv.org/abs/1811.06965."""

from __future__ import annotations

from prestep.workloads.schedules import Action
from prestep.workloads.schedules.runtime import Operation, Recorder

PLACEMENT = "loop"
CHUNKS = 1


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Action, ...]:
    """The actions of one rank."""
    return tuple(
        Action(rank, kind, microbatch)
        for kind in "FB"
        for microbatch in range(microbatches)
    )


def operations(
    rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Operation, ...]:
    """As torch's ScheduleGPipe: a batch for each transfer; sends are waited for at the end of their half."""
    record = Recorder(rank, range(ranks))
    for kind in "FB":
        sends = []
        for microbatch in range(microbatches):
            action = Action(rank, kind, microbatch)
            record.wait(record.post(record.receives(action)))
            record.compute(action)
            sends.append(record.post(record.sends(action)))
        for handle in sends:
            record.wait(handle)
    record.hook("REDUCE_GRAD", rank)
    return record.done()
