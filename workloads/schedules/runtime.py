"""What a rank issues to its GPU to run a schedule: computation, batches of sends and receives, waits.

This is PyTorch 2.11's behaviour (torch/distributed/pipelining/schedules.py). Three rules turn the lists into time:

* `Compute` goes to the compute stream. The host issues everything in order and never blocks on any of it.
* A `Batch` is one `batch_isend_irecv`: one NCCL kernel on the one internal stream of the pipeline's communicator. It
  starts after the batches before it, and after the compute issued before it (an event), and ends when all its transfers
  have. So a receive that was issued early blocks later sends of the same rank (pytorch issue 175225), until 2.13.
* `Wait` makes the compute stream wait for the end of a batch.

`ScheduleGPipe` and `Schedule1F1B` have their own loops, see their files. All others derive from
`_PipelineScheduleRuntime`, whose transfers are batches of one, issued where `lower` puts them: a send right after its
computation, its receive at the point that the receiver has reached by then. A receive is waited for just before the
computation that uses it, sends at the end of the step. Stages that are neighbours on one rank exchange nothing.

Not in the lists: the loss, which the last stage computes right after each forward. `executed` says what a split
backward really runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

from prestep.sim.errors import PrestepError
from prestep.workloads.schedules import Action, checked, rank_of_stages

# _add_unshard_reshard(max_active_stages=3)
ACTIVE_STAGES = 3
STREAM = "nccl pp"


@dataclass(frozen=True)
class Compute:
    """One action on the compute stream."""

    stage: int
    kind: str
    microbatch: int


@dataclass(frozen=True)
class Pair:
    """A forward and a backward pass of two microbatches whose communication runs beside the other's computation."""

    forward: Compute
    backward: Compute


@dataclass(frozen=True)
class Send:
    """`stage` sends its output (what = F) or the gradient of its input (B) to pipeline rank `peer`."""

    what: str
    stage: int
    microbatch: int
    peer: int

    @property
    def key(self) -> tuple[str, int, int]:
        """(what, sending stage, microbatch): the same for the two ends of a transfer."""
        return self.what, self.stage, self.microbatch


@dataclass(frozen=True)
class Recv:
    """`stage` receives its input (what = F) or the gradient of its output (B) from pipeline rank `peer`."""

    what: str
    stage: int
    microbatch: int
    peer: int

    @property
    def key(self) -> tuple[str, int, int]:
        """(what, sending stage, microbatch): the same for the two ends of a transfer."""
        return self.what, self.stage + (-1 if self.what == "F" else 1), self.microbatch


@dataclass(frozen=True)
class Batch:
    """Sends and receives that are one NCCL kernel; `handle` counts the batches of the rank from 0."""

    handle: int
    ops: tuple[Send | Recv, ...]

    def stream(self, rank: int, by_pair: bool) -> str:
        """The stream on which `rank` runs it: one for all batches, or with `by_pair` one for each pair of ranks.

        Since PyTorch 2.13 (``_batch_p2p``; pull request 175712) only batches that both send and receive are coalesced.
        A lone transfer has the communicator of its two ranks, so it no longer waits for another neighbour's.
        """
        if by_pair and len({type(op) for op in self.ops}) == 1:
            low, high = sorted((rank, self.ops[0].peer))
            return f"{STREAM} {low}:{high}"
        return STREAM


@dataclass(frozen=True)
class Wait:
    """The compute stream waits for the end of the batch `handle`; the host does not."""

    handle: int


@dataclass(frozen=True)
class Hook:
    """Where data parallelism acts on a stage: UNSHARD, RESHARD (FSDP; nothing without it), REDUCE_GRAD."""

    kind: str
    stage: int


def executed(stage: int, kind: str) -> str:
    """What PyTorch really runs for an action: "" for I of stage 0, whose W is then the full backward B.

    The first stage's input needs no gradient, so backward_one_chunk skips it and backward_weight_one_chunk calls
    autograd for the whole stage (torch/distributed/pipelining/stage.py).
    """
    return {"I": "", "W": "B"}.get(kind, kind) if stage == 0 else kind


Operation = Compute | Pair | Batch | Wait | Hook
Item = tuple[Action, ...] | Hook | Send | Recv


@dataclass
class Recorder:
    """Builds the list of one rank; `owner` is the rank of each stage."""

    rank: int
    owner: Sequence[int]
    issued: list[Operation] = field(default_factory=list)
    batches: int = 0

    def compute(self, *actions: Action) -> None:
        """One computation, or two at once."""
        each = [Compute(*action) for action in actions]
        self.issued.append(Pair(*each) if len(each) == 2 else each[0])

    def post(self, ops: tuple[Send | Recv, ...]) -> int | None:
        """Issue a batch; None if there is nothing to transfer (torch then issues nothing)."""
        if not ops:
            return None
        self.issued.append(Batch(self.batches, ops))
        self.batches += 1
        return self.batches - 1

    def wait(self, handle: int | None) -> None:
        if handle is not None:
            self.issued.append(Wait(handle))

    def hook(self, kind: str, stage: int) -> None:
        self.issued.append(Hook(kind, stage))

    def sends(self, action: Action) -> tuple[Send, ...]:
        """What an action makes for another rank: its output, or its input's gradient."""
        what = action.kind, action.stage, action.microbatch
        return tuple(Send(*what, p) for p in self._peer(action.stage + action.onward))

    def receives(self, action: Action) -> tuple[Recv, ...]:
        """What an action needs from another rank: its input, or its output's gradient."""
        what = action.kind, action.stage, action.microbatch
        return tuple(Recv(*what, p) for p in self._peer(action.stage - action.onward))

    def _peer(self, stage: int) -> tuple[int, ...]:
        """The rank that has a stage, if there is one and it is another one."""
        peers = self.owner[stage : stage + 1] if stage >= 0 else ()
        return tuple(peer for peer in peers if peer != self.rank)

    def done(self) -> tuple[Operation, ...]:
        return tuple(self.issued)


def operations(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    hooks: bool = False,
    few: bool = False,
) -> tuple[tuple[Operation, ...], ...]:
    """What every pipeline rank issues in one step, in order.

    Parameters
    ----------
    hooks : also return the `Hook`s; without data parallelism they do nothing.

    Raises
    ------
    InputError
        If there is no such schedule, or it cannot run with these numbers.
    PrestepError
        If no order of sends and receives fits the schedule.
    """
    module, chunks = checked(name, ranks, microbatches, chunks, few)
    if hasattr(module, "operations"):
        rows = [
            module.operations(rank, ranks, microbatches, chunks)
            for rank in range(ranks)
        ]
    else:
        rows = in_order(module, ranks, microbatches, chunks)
    return tuple(
        tuple(op for op in row if hooks or not isinstance(op, Hook)) for row in rows
    )


def in_order(
    module: ModuleType, ranks: int, microbatches: int, chunks: int, pairs: bool = False
) -> list[tuple[Operation, ...]]:
    """What every rank issues of a schedule that says only who computes what in which order; `pairs` as of `issue`."""
    steps = getattr(module, "steps", None) or (
        lambda *size: tuple((action,) for action in module.actions(*size))
    )
    order = [steps(rank, ranks, microbatches, chunks) for rank in range(ranks)]
    owner = rank_of_stages(module.PLACEMENT, ranks, chunks)
    return [issue(items, pairs) for items in lower(order, owner, microbatches)]


def lower(
    order: Sequence[Sequence[tuple[Action, ...]]],
    owner: Sequence[int],
    microbatches: int,
) -> list[list[Item]]:
    """Insert hooks, sends and receives; `owner` is the rank of each stage.

    The ranks take turns, one item each. Whoever runs an action that another rank needs adds the send to its own list
    and the receive to the end of the other's, so all lists agree with one global order and cannot deadlock.
    """
    todo = [deque(_with_hooks(steps, microbatches)) for steps in order]
    rows: list[list[Item]] = [[] for _ in order]
    arrived: set[tuple[str, int, int]] = set()
    while any(todo):
        moved = False
        for rank, queue in enumerate(todo):
            if queue and _ready(queue[0], arrived, len(owner) - 1):
                moved = True
                rows[rank].append(queue[0])
                for action in () if isinstance(item := queue.popleft(), Hook) else item:
                    _transfer(action, rank, owner, rows, arrived)
        if not moved:
            raise PrestepError(
                "the schedule has no order of sends and receives: its actions wait for each other"
            )
    return rows


def _ready(
    item: tuple[Action, ...] | Hook, arrived: set[tuple[str, int, int]], last: int
) -> bool:
    if isinstance(item, Hook):
        return True
    for stage, kind, microbatch in item:
        if kind == "F" and stage > 0 and ("F", stage, microbatch) not in arrived:
            return False
        if kind in "BI" and stage < last and ("B", stage, microbatch) not in arrived:
            return False
    return True


def _transfer(
    action: Action,
    rank: int,
    owner: Sequence[int],
    rows: list[list[Item]],
    arrived: set[tuple[str, int, int]],
) -> None:
    """Hand the result of `action` to the stage that needs it."""
    if action.kind == "W":
        return
    what = "F" if action.kind == "F" else "B"
    target = action.stage + action.onward
    if not 0 <= target < len(owner):
        return
    arrived.add((what, target, action.microbatch))
    if owner[target] != rank:
        rows[rank].append(Send(what, action.stage, action.microbatch, owner[target]))
        rows[owner[target]].append(Recv(what, target, action.microbatch, rank))


def _with_hooks(
    steps: Sequence[tuple[Action, ...]], microbatches: int
) -> list[tuple[Action, ...] | Hook]:
    """Unshard the next three stages ahead of their use, reduce a stage's gradients after its last backward.

    The hooks matter even where they do nothing: they take turns in `lower`, and so move receives.
    """
    out: list[tuple[Action, ...] | Hook] = []
    active: list[int] = []
    backwards: Counter[int] = Counter()
    for step, upcoming in zip(steps, _upcoming(steps), strict=True):
        out.extend(
            Hook("RESHARD", stage) for stage in sorted(active) if stage not in upcoming
        )
        out.extend(Hook("UNSHARD", stage) for stage in upcoming if stage not in active)
        active = upcoming
        out.append(step)
        for action in step:
            backwards[action.stage] += action.kind in "BW"
            if action.kind in "BW" and backwards[action.stage] == microbatches:
                out.append(Hook("REDUCE_GRAD", action.stage))
    return out + [Hook("RESHARD", stage) for stage in sorted(active)]


def _upcoming(steps: Sequence[tuple[Action, ...]]) -> list[list[int]]:
    """For each step, the next stages to be used from it on, nearest first."""
    nearest: list[int] = []
    found = []
    for step in reversed(steps):
        here = list(dict.fromkeys(action.stage for action in step))
        nearest = here + [stage for stage in nearest if stage not in here]
        found.append(nearest[:ACTIVE_STAGES])
    return found[::-1]


def issue(items: Sequence[Item], pairs: bool = False) -> tuple[Operation, ...]:
    """The lowered list of a rank as operations: batches of one, waits before use, sends waited for at the end.

    `pairs`: two actions at once are a `Pair`, behind what both receive; else one follows the other.
    """
    record = Recorder(0, ())
    received: dict[tuple[str, int, int], int | None] = {}
    sent = []
    for item in items:
        if isinstance(item, Send):
            sent.append(record.post((item,)))
        elif isinstance(item, Recv):
            received[item.what, item.stage, item.microbatch] = record.post((item,))
        elif isinstance(item, Hook):
            record.hook(item.kind, item.stage)
        else:
            at_once = [item] if pairs else [(action,) for action in item]
            for actions in at_once:
                for action in actions:
                    what = action.kind if action.kind in "FW" else "B"
                    key = what, action.stage, action.microbatch
                    record.wait(received.pop(key, None))
                record.compute(*actions)
    for handle in reversed(sent):
        record.wait(handle)
    return record.done()
