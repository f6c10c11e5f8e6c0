"""Interleaved 1F1B as PyTorch ran it before 2.10: in time steps, after each of which neighbours exchange and wait.

Source: torch/distributed/pipelining/schedules.py. ``ScheduleInterleaved1F1B`` is a ``PipelineScheduleMulti`` in 2.8.0
and 2.9.0, which waits for a batch in each time step (``_step_microbatches``); in 2.10.0 a ``_PipelineScheduleRuntime``.

``PipelineScheduleMulti`` walks a table of time steps. In each a rank computes at most once; then one batch has what it
sends and what its neighbours computed for it in the same time step, and it waits for all of the batch. Empty time steps
align the ranks: forward passes of all fall into the same ones, and backward passes into those between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prestep.workloads.schedules import Action
from prestep.workloads.schedules._rounds import walk
from prestep.workloads.schedules.runtime import Operation, Recorder, Recv, Send

TimeStep = Action | None


def operations(
    ranks: int, microbatches: int, chunks: int
) -> tuple[tuple[Operation, ...], ...]:
    """What every pipeline rank issues in one step, in order."""
    table = [time_steps(rank, ranks, microbatches, chunks) for rank in range(ranks)]
    owner = tuple(range(ranks)) * chunks
    return tuple(_issued(rank, table, owner) for rank in range(ranks))


def time_steps(
    rank: int, ranks: int, microbatches: int, chunks: int
) -> tuple[TimeStep, ...]:
    """The action of every time step of a rank, or None: ranks begin one after the other.

    Backward passes begin when the first has come back from the last rank; at the end one goes with an empty time step.
    """
    order = walk(rank, ranks, microbatches, chunks, hop=2, split=False)
    warmup = next((i for i, a in enumerate(order) if a.kind == "B"), len(order))
    if warmup < chunks * microbatches:
        warmup -= 1  # the last forward pass before is the first pair's
    back = chunks * ranks + 2 * (ranks - 1 - rank)  # of the first backward pass
    steps: list[TimeStep] = [None] * rank + list(order[:warmup])
    steps += [None] * (back - warmup - rank)
    left = Counter(action.kind for action in order[warmup:])
    for action in order[warmup:]:
        if action.kind == "B" and not left["F"] and left["B"] <= warmup:
            steps.append(None)
        left[action.kind] -= 1
        steps.append(action)
    return tuple(steps)


def _issued(
    rank: int, table: Sequence[Sequence[TimeStep]], owner: Sequence[int]
) -> tuple[Operation, ...]:
    """A rank's time steps, each with its batch."""
    record = Recorder(rank, owner)
    for time in range(max(map(len, table))):
        action = _at(table[rank], time)
        if action is not None:
            record.compute(action)
        ops: list[Send | Recv] = [] if action is None else [*record.sends(action)]
        for other in sorted(
            {(rank - 1) % len(table), (rank + 1) % len(table)} - {rank}
        ):
            ops += _received(record, _at(table[other], time))
        record.wait(record.post(tuple(ops)))
    return record.done()


def _at(steps: Sequence[TimeStep], time: int) -> TimeStep:
    return steps[time] if time < len(steps) else None


def _received(record: Recorder, action: TimeStep) -> Sequence[Recv]:
    """What a rank gets of an action of another."""
    target = -1 if action is None else action.stage + action.onward
    if (
        action is None
        or not 0 <= target < len(record.owner)
        or record.owner[target] != record.rank
    ):
        return ()
    return record.receives(action._replace(stage=target))
