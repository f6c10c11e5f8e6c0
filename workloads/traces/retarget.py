"""Changes to a recorded run, each a named transformation of its draft.

========================================  =====================================================================
key                                       transformation
========================================  =====================================================================
parallel.dp = 8                           more or fewer data-parallel ranks, from a trace whose ranks are alike
parallel.bucket_cap = 100 MiB             gradients put into other buckets
parallel.data_parallel = ddp-no-overlap   communication that nothing runs beside
faults.slow_rank = 3                      a straggler, with faults.slow_factor = 1.2 or faults.slow_per_layer = 1 ms
kernels.FAMILY = 0.5x                     faster kernels of a family; 0 removes them ("kernels.communication" too)
kernels.A+B = fused                       neighbours of families A and B in one kernel, as long as its longest part
cluster.host_factor = 0.5                 a faster or slower host
nccl.KEY = VALUE                          NCCL's settings, as in scenarios
========================================  =====================================================================

Short names will do (dp = 8). Anything else is a change of links, as everywhere (``nvlink.bandwidth=2x``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.units import parse_bytes
from prestep.workloads.traces.buckets import CAP, rebucket, split
from prestep.workloads.traces.changes import Changes, asked_factor, integer, scale
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.straggler import straggler
from prestep.workloads.traces.work import GPU

# Of these a fused kernel has one: others are its prologue and epilogue.
ARITHMETIC = ("gemm", "attention", "convolution")


def fuse(draft: Draft, families: Sequence[str]) -> int:
    """Fuses neighbours on a stream that are of the families; the number of kernels that are gone.

    A fused kernel lasts as long as the longest of its parts: what they hand to each other stays on the chip. That is
    the best a fusion can do. The parts' launches and the pauses between them are gone too.
    """
    gone = sum(
        _fuse_rank(nodes, frozenset(families)) for nodes in draft.programs.values()
    )
    draft.changes.append(
        f"{' and '.join(families)} kernels fused: {gone} launches fewer"
    )
    draft.notes[
        "fused kernels take the time of their longest part (guess: the best case)"
    ] += gone
    return gone


@dataclass(frozen=True)
class _Fused:
    """A kernel that the next one of its stream may join; `heavy` if it has a matrix product or the like already."""

    head: Node
    heavy: bool

    def joinable(self, node: Node) -> bool:
        """Whether a kernel can become a part of this one."""
        if node.op.step != self.head.op.step or _waits(node):
            return False
        return not (self.heavy and node.family in ARITHMETIC)

    def join(self, node: Node) -> _Fused:
        """Takes a kernel in: it costs nothing of its own any more."""
        self.head.duration = max(self.head.duration, node.duration)
        node.duration = node.gap = node.latency = node.host = 0.0
        return _Fused(self.head, self.heavy or node.family in ARITHMETIC)


def _fuse_rank(nodes: Sequence[Node], families: frozenset[str]) -> int:
    """Fuses the kernels of one rank; how many of them are gone."""
    gone, growing = 0, dict[int, _Fused]()
    for node in nodes:
        if node.kind != GPU:
            if node.deps:  # the host looks at results: nothing is fused over that
                growing.clear()
            continue
        if node.comms or node.family not in families:
            growing.pop(node.stream, None)
            continue
        fused = growing.get(node.stream)
        if fused is not None and fused.joinable(node):
            growing[node.stream] = fused.join(node)
            gone += 1
        else:
            growing[node.stream] = _Fused(node, node.family in ARITHMETIC)
    return gone


def _waits(node: Node) -> bool:
    """Whether it waits for another stream."""
    return any(dep.stream != node.stream for dep in node.deps if dep.kind == GPU)


# Changes that move communication to beside other kernels.
MOVES = {
    "parallel.dp",
    "parallel.bucket_cap",
    "parallel.data_parallel",
    "faults.slow_rank",
    "cluster.host_factor",
}

ALL_DATA_PARALLEL = (
    "collectives of all ranks taken for data parallelism, with as many bytes "
    "(of tensor parallelism they would be others)"
)


def apply(
    draft: Draft,
    changes: Changes,
    copy: Callable[[float], float],
    beside: Callable[[Node], float],
    planned: bool,
) -> None:
    """Makes the changes that concern operations.

    `copy` gives the seconds a GPU takes to scale that many bytes, `beside` how much longer a kernel takes beside
    communication. `planned`: transfers are planned on a cluster, not played as recorded.

    Raises
    ------
    InputError
        For values that are wrong, and changes that this run does not allow.
    """
    if planned or changes.keys.keys() & MOVES or changes.gpus:
        relieve(draft, beside)
    _data_parallelism(draft, changes, copy, beside)
    for families in changes.fused:
        fuse(draft, families)
    for name, factor in changes.kernels.items():
        _scale_family(draft, name, factor)
    straggler(draft, changes)
    if "cluster.host_factor" in changes.keys:
        factor = asked_factor(changes, "cluster.host_factor")
        for node in _every(draft):
            node.host *= factor
        draft.changes.append(f"host time x {factor:g}")


def _data_parallelism(
    draft: Draft,
    changes: Changes,
    copy: Callable[[float], float],
    beside: Callable[[Node], float],
) -> None:
    """The number of ranks, their buckets, and what runs beside their communication."""
    keys, cap = changes.keys, 0.0
    if "parallel.bucket_cap" in keys:
        written = keys["parallel.bucket_cap"]
        cap = parse_bytes(written, "--set", "parallel.bucket_cap")
    if "parallel.dp" in keys:
        ranks = integer(changes, "parallel.dp", 1)
        if not draft.meetings and ranks > 1:
            split(draft, ranks, cap, copy)
            cap = 0.0
        else:
            data_parallel(draft, ranks, beside)
    if cap:
        rebucket(draft, cap)
    if "parallel.data_parallel" in keys:
        _data_parallel_kind(draft, keys["parallel.data_parallel"], beside)


def _no_such_kernels(draft: Draft, name: str) -> Mistake:
    """What is wrong with a change of kernels that a trace does not have."""
    kernels = [
        node
        for nodes in draft.programs.values()
        for node in nodes
        if node.kind == GPU and not node.comms
    ]
    families = ", ".join(sorted({node.family for node in kernels})) or "none"
    key = f"kernels.{name.replace(' ', '_')}"
    return Mistake("--set", key, "no such kernel in the trace", f"one of {families}")


def _scale_family(draft: Draft, name: str, factor: float) -> None:
    if name == "communication":
        _scale_communication(draft, factor)
    elif factor != 1.0 and not scale(
        draft, lambda node: factor if node.family == name else 1.0
    ):
        raise InputError(_no_such_kernels(draft, name))
    draft.changes.append(f"{name} kernels take {factor:g} of their time")


def _every(draft: Draft) -> Iterable[Node]:
    return (node for nodes in draft.programs.values() for node in nodes)


def _scale_communication(draft: Draft, factor: float) -> None:
    for meeting in draft.meetings:
        meeting.size, meeting.duration = (
            meeting.size * factor,
            meeting.duration * factor,
        )


def data_parallel(draft: Draft, ranks: int, beside: Callable[[Node], float]) -> None:
    """Another number of data-parallel ranks: the recorded ones stand for all.

    Raises
    ------
    InputError
        If some communication is not among all ranks: then they are not alike.
    """
    everyone = set(range(draft.world))
    if any(set(m.ranks) != everyone for m in draft.meetings):
        found = "communication within parts of the job"
        raise InputError.of(
            "--set", "parallel.dp", found, "a run in which all ranks do the same"
        )
    for rank in [r for r in draft.programs if r >= ranks]:
        if len(draft.programs) > 1:
            del draft.programs[rank]
    for meeting in draft.meetings:
        meeting.ranks = tuple(range(ranks))
        meeting.members = [(rank, op) for rank, op in meeting.members if rank < ranks]
    if ranks == 1:
        _without_communication(draft, beside)
    draft.notes["ranks that were not recorded: they do what the recorded ones do"] += (
        max(0, ranks - draft.world)
    )
    draft.notes[ALL_DATA_PARALLEL] += len(draft.meetings)
    draft.changes.append(f"{ranks} data-parallel ranks instead of {draft.world}")
    draft.world = ranks


def _without_communication(draft: Draft, beside: Callable[[Node], float]) -> None:
    """A single rank: communication takes no time, and slows nothing down."""
    relieve(draft, beside)
    for node in _every(draft):
        if node.comms:
            node.comms, node.duration, node.gap = [], 0.0, 0.0
    draft.meetings.clear()


def _data_parallel_kind(
    draft: Draft, kind: str, beside: Callable[[Node], float]
) -> None:
    if kind not in ("ddp", "ddp-no-overlap"):
        raise InputError(
            unknown("--set", "parallel.data_parallel", kind, ("ddp", "ddp-no-overlap"))
        )
    if kind == "ddp-no-overlap":
        without_overlap(draft, beside)
    elif draft.meetings and not _overlaps(draft):
        rebucket(draft, CAP, inline=True)


def _overlaps(draft: Draft) -> bool:
    """Whether a tenth of recorded communication, or communication made here, had kernels beside it."""
    shared = total = 0.0
    for nodes in draft.programs.values():
        gpu = [node for node in nodes if node.kind == GPU]
        kernels = sorted((n.op.start, n.op.end) for n in gpu if not n.comms)
        starts = [start for start, _ in kernels]
        for node in gpu:
            if node.comms and not node.comms[0].members:
                return True
            if node.comms:
                begin, end = max(m.begin for m in node.comms), node.op.end
                first = max(0, bisect_left(starts, begin) - 1)
                last = bisect_right(starts, end)
                shared += _shared(begin, end, kernels[first:last])
                total += end - begin
    return shared > 0.1 * total


def without_overlap(draft: Draft, beside: Callable[[Node], float]) -> None:
    """Every communication begins when what was issued before it has ended, and what is issued after it waits."""
    relieve(draft, beside)
    for nodes in draft.programs.values():
        computing, pending = None, list[Node]()
        for node in nodes:
            if node.kind != GPU:
                continue
            if node.comms:
                node.deps = (
                    [*node.deps, computing] if computing is not None else node.deps
                )
                pending.append(node)
            else:
                node.deps = [*node.deps, *pending]
                computing, pending = node, []
    draft.changes.append("no overlap of communication and computation")


def relieve(draft: Draft, beside: Callable[[Node], float]) -> None:
    """Kernels without the slowdown of the communication that was recorded beside them; once."""
    if draft.relieved or draft.interferes:
        return
    draft.relieved = True
    for nodes in draft.programs.values():
        moving = sorted(
            (n.op.start, n.op.end) for n in nodes if n.comms and n.comms[0].members
        )
        starts = [start for start, _ in moving]
        for node in nodes:
            if node.kind != GPU or node.comms or node.duration <= 0:
                continue
            first = max(0, bisect_left(starts, node.op.start) - 4)
            last = bisect_right(starts, node.op.end)
            shared = _shared(node.op.start, node.op.end, moving[first:last])
            share = min(1.0, shared / node.duration)
            node.duration *= 1.0 - share + share / beside(node) if share else 1.0


def _shared(begin: float, end: float, others: list[tuple[float, float]]) -> float:
    """Seconds of a span that others share, each counted by itself."""
    shared = 0.0
    for first, last in others:
        shared += max(0.0, min(end, last) - max(begin, first))
    return shared


def rescaled(draft: Draft, factor: Callable[[Node], float], name: str) -> None:
    """Kernels as another GPU runs them."""
    scale(draft, factor)
    draft.changes.append(f"kernels as on {name}")
