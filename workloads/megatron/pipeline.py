"""How Megatron issues a pipeline schedule's transfers (megatron/core/pipeline_parallel/schedules.py).

Without interleaving as PyTorch's 1F1B does. With it there are two ways: one batch of all transfers between two rounds
of computation, waited for at once; or (overlap_p2p_comm) every transfer by itself, a receive posted one computation
ahead of its use, each direction and peer on a communicator of its own, so that none blocks another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from prestep.workloads.schedules import Action
from prestep.workloads.schedules.runtime import (
    Batch,
    Compute,
    Operation,
    Pair,
    Recorder,
    Wait,
)

# A pass of a microbatch through a chunk: its stage, and the microbatch.
Passage = tuple[int, int]


@dataclass(frozen=True)
class Alignment:
    """What sets off at which pass of a rank.

    Attributes
    ----------
    gathers : mapping
        The chunk whose parameters are gathered from a forward pass on.
    reductions : mapping
        The chunk whose gradients are reduced when a backward pass has ended.
    """

    gathers: Mapping[Passage, int] = field(default_factory=dict)
    reductions: Mapping[Passage, int] = field(default_factory=dict)


def alignment_of(operations: Sequence[Operation], rank: int) -> Alignment:
    """Of the pipeline rank that issues these operations."""
    forward, backward = _passes(operations, "F"), _passes(operations, "B")
    return Alignment(_gathers(forward, rank), _reductions(backward, rank))


def _passes(operations: Sequence[Operation], kind: str) -> list[Passage]:
    """All passes of a kind, in their order."""
    passes = []
    for operation in operations:
        both = (
            (operation.forward, operation.backward)
            if isinstance(operation, Pair)
            else (operation,)
        )
        for one in both:
            if isinstance(one, Compute) and one.kind == kind:
                passes.append((one.stage, one.microbatch))
    return passes


def _gathers(passes: Sequence[Passage], rank: int) -> dict[Passage, int]:
    """A chunk is gathered when the first rank begins with the one before it; the first two are from the start."""
    chunks = sorted({stage for stage, _ in passes})
    first = {stage: at for at, (stage, _) in reversed(list(enumerate(passes)))}
    begins = {first[before] - rank: chunk for before, chunk in pairwise(chunks[1:])}
    return {passes[at]: chunk for at, chunk in begins.items() if at >= 0}


def _reductions(passes: Sequence[Passage], rank: int) -> dict[Passage, int]:
    """A chunk is reduced when the first rank has ended its last pass; what that leaves out is at the end."""
    last = {stage: at for at, (stage, _) in enumerate(passes)}
    ends = {at + rank: chunk for chunk, at in last.items()}
    return {passes[at]: chunk for at, chunk in ends.items() if at < len(passes)}


def one_at_a_time(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Each transfer ends before the next begins and before any computation, as DeepSpeed's engine does.

    Its sends and receives are `torch.distributed`'s blocking ones (deepspeed/runtime/pipe/p2p.py). Of an activation and
    a gradient that meet between two stages, the activation goes first on both (TrainSchedule, pipe/schedule.py).
    """
    issued: list[Operation] = []
    handle = 0
    for operation in operations:
        if isinstance(operation, Batch):
            for op in sorted(operation.ops, key=lambda op: op.what != "F"):
                issued += (Batch(handle, (op,)), Wait(handle))
                handle += 1
        elif not isinstance(operation, Wait):
            issued.append(operation)
    return tuple(issued)


def interleaved(
    rank: int, actions: Sequence[Action], owner: Sequence[int], overlap: bool
) -> tuple[Operation, ...]:
    """What one rank issues for its actions; ``owner`` is the pipeline rank of every stage."""
    record = Recorder(rank, owner)
    (_overlapped if overlap else _in_rounds)(record, actions)
    return record.done()


def _overlapped(record: Recorder, actions: Sequence[Action]) -> None:
    """Each receive is posted one computation ahead of its use; the last send is waited for at the end."""
    needed = [record.receives(action) for action in actions]
    coming = record.post(needed[0])
    last: int | None = None
    for action, following in zip(actions, [*needed[1:], ()], strict=True):
        here, coming = coming, record.post(following)
        record.wait(here)
        record.compute(action)
        sent = record.post(record.sends(action))
        last = last if sent is None else sent
    record.wait(last)


def _in_rounds(record: Recorder, actions: Sequence[Action]) -> None:
    """All that two rounds of computation exchange is one batch between them, waited for at once."""
    rounds = _rounds(actions)
    needed = [
        tuple(op for action in computed for op in record.receives(action))
        for computed in rounds
    ]
    record.wait(record.post(needed[0]))
    for computed, following in zip(rounds, [*needed[1:], ()], strict=True):
        for action in computed:
            record.compute(action)
        results = [op for action in computed for op in record.sends(action)]
        record.wait(record.post((*results, *following)))


def _rounds(actions: Sequence[Action]) -> list[Sequence[Action]]:
    """Computations between two exchanges: a forward and the backward pass that follows it, or one pass alone."""
    kinds = "".join(action.kind for action in actions)
    return [actions[one.start() : one.end()] for one in re.finditer("FB|.", kinds)]
