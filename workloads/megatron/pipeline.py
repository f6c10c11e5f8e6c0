"""How Megatron issues a pipeline schedule's transfers (megatron/core/pipeline_parallel/schedules.py).

Without interleaving as PyTorch's 1F1B does. With it there are two ways: one batch of all transfers between two rounds
of computation, waited for at once; or (overlap_p2p_comm) every transfer by itself, a receive posted one computation
ahead of its use, each direction and peer on a communicator of its own, so that none blocks another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType

from prestep.workloads.schedules import Action
from prestep.workloads.schedules.runtime import (
    Batch,
    Compute,
    Hook,
    Item,
    Operation,
    Recorder,
    Recv,
    Send,
    Wait,
    lower,
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


def alignment_of(operations: Sequence[Issued], rank: int) -> Alignment:
    """Of the pipeline rank that issues these operations."""
    forward, backward = _passes(operations, "F"), _passes(operations, "B")
    return Alignment(_gathers(forward, rank), _reductions(backward, rank))


def _passes(operations: Sequence[Issued], kind: str) -> list[Passage]:
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


@dataclass(frozen=True)
class Pair:
    """A forward and a backward pass of two microbatches whose communication runs beside the other's computation."""

    forward: Compute
    backward: Compute


Issued = Operation | Pair
# What an action of a rank exchanges with others; the last are the pipeline ranks of the stages.
Transfers = Callable[[int, Action, Sequence[int]], tuple[Send | Recv, ...]]


def in_order(
    module: ModuleType, ranks: int, microbatches: int, chunks: int, owner: Sequence[int]
) -> list[tuple[Issued, ...]]:
    """What every rank issues of a schedule that says only who computes what in which order.

    Each transfer is by itself: a send after its computation, its receive where the receiver has got to by then, which
    orders the transfers of all ranks alike (`prestep.workloads.schedules.runtime.lower`).
    """
    steps = getattr(module, "steps", None) or (
        lambda *size: tuple((action,) for action in module.actions(*size))
    )
    order = [steps(rank, ranks, microbatches, chunks) for rank in range(ranks)]
    return [_issued(items) for items in lower(order, owner, microbatches)]


def _issued(items: Sequence[Item]) -> tuple[Issued, ...]:
    """Every transfer as a batch of its own, received before its use; sends are waited for at the end."""
    issue = _OneByOne()
    for item in items:
        if isinstance(item, Send | Recv):
            issue.transfer(item)
        elif not isinstance(item, Hook):
            issue.compute(item)
    return issue.done()


@dataclass
class _OneByOne:
    """What a rank issues, and the batches of its transfers: receives by what they bring, and sends."""

    issued: list[Issued] = field(default_factory=list)
    received: dict[tuple[str, int, int], int] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)

    def transfer(self, op: Send | Recv) -> None:
        """A batch of one."""
        handle = len(self.received) + len(self.sent)
        self.issued.append(Batch(handle, (op,)))
        if isinstance(op, Recv):
            self.received[op.what, op.stage, op.microbatch] = handle
        else:
            self.sent.append(handle)

    def compute(self, actions: Sequence[Action]) -> None:
        """One computation, or two at once, behind what they receive."""
        inputs = [self.received.get(_input(action)) for action in actions]
        self.issued += [Wait(handle) for handle in inputs if handle is not None]
        computed = [Compute(*action) for action in actions]
        self.issued += [Pair(*computed)] if len(computed) == 2 else computed

    def done(self) -> tuple[Issued, ...]:
        """All, with the waits for its sends."""
        return (*self.issued, *(Wait(handle) for handle in reversed(self.sent)))


def _input(action: Action) -> tuple[str, int, int]:
    """What an action takes from another stage: (what, stage, microbatch); both halves of a backward pass take "B"."""
    what = action.kind if action.kind in "FW" else "B"
    return what, action.stage, action.microbatch


def one_at_a_time(operations: Sequence[Issued]) -> tuple[Issued, ...]:
    """Each transfer ends before the next begins and before any computation, as DeepSpeed's engine does.

    Its sends and receives are `torch.distributed`'s blocking ones (deepspeed/runtime/pipe/p2p.py). Of an activation and
    a gradient that meet between two stages, the activation goes first on both (TrainSchedule, pipe/schedule.py).
    """
    issued: list[Issued] = []
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
    return (_overlapped if overlap else _in_rounds)(rank, actions, owner)


def receives(rank: int, action: Action, owner: Sequence[int]) -> tuple[Recv, ...]:
    """What an action needs from another rank: its input, or its output's gradient."""
    before = action.stage + (-1 if action.kind == "F" else 1)
    if not 0 <= before < len(owner) or owner[before] == rank:
        return ()
    return (Recv(action.kind, action.stage, action.microbatch, owner[before]),)


def sends(rank: int, action: Action, owner: Sequence[int]) -> tuple[Send, ...]:
    """What an action makes for another rank: its output, or its input's gradient."""
    after = action.stage + (1 if action.kind == "F" else -1)
    if not 0 <= after < len(owner) or owner[after] == rank:
        return ()
    return (Send(action.kind, action.stage, action.microbatch, owner[after]),)


def _overlapped(
    rank: int, actions: Sequence[Action], owner: Sequence[int]
) -> tuple[Operation, ...]:
    """Each receive is posted one computation ahead of its use; the last send is waited for at the end."""
    record = Recorder(rank, max(owner) + 1)
    needed = [receives(rank, action, owner) for action in actions]
    coming = record.post(needed[0])
    last: int | None = None
    for action, following in zip(actions, [*needed[1:], ()], strict=True):
        here, coming = coming, record.post(following)
        record.wait(here)
        record.compute(action)
        sent = record.post(sends(rank, action, owner))
        last = last if sent is None else sent
    record.wait(last)
    return record.done()


def _in_rounds(
    rank: int, actions: Sequence[Action], owner: Sequence[int]
) -> tuple[Operation, ...]:
    """All that two rounds of computation exchange is one batch between them, waited for at once."""
    record = Recorder(rank, max(owner) + 1)
    rounds = _rounds(actions)
    needed = [_all_of(receives, rank, computed, owner) for computed in rounds]
    record.wait(record.post(needed[0]))
    for computed, following in zip(rounds, [*needed[1:], ()], strict=True):
        for action in computed:
            record.compute(action)
        results = _all_of(sends, rank, computed, owner)
        record.wait(record.post((*results, *following)))
    return record.done()


def _all_of(
    transfers: Transfers, rank: int, computed: Sequence[Action], owner: Sequence[int]
) -> tuple[Send | Recv, ...]:
    """Transfers of all computations of a round."""
    return tuple(op for action in computed for op in transfers(rank, action, owner))


def _rounds(actions: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Computations between two exchanges: forward passes of the warm-up, pairs of one each, last backward passes."""
    backwards = (i for i, action in enumerate(actions) if action.kind == "B")
    warm_up = max(0, next(backwards, len(actions)) - 1)
    alone = [(action,) for action in actions[:warm_up]]
    return [*alone, *_in_pairs(actions[warm_up:])]


def _in_pairs(actions: Sequence[Action]) -> list[tuple[Action, ...]]:
    """A forward and the backward pass that follows it are one round."""
    rounds: list[tuple[Action, ...]] = []
    i = 0
    while i < len(actions):
        kinds = [action.kind for action in actions[i : i + 2]]
        size = 2 if kinds == ["F", "B"] else 1
        rounds.append(tuple(actions[i : i + size]))
        i += size
    return rounds
