"""Counts of a recording: operations by kind, communication by group, waits of the host, the flops of its model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.recording import Event, RankRecording, Recording
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import base

OPERATIONS = ("operate", "operate_compiled")
#: Events in which the host waits, in words.
WAITS = {
    "host_waits_event": "for an event",
    "host_waits_stream": "for a stream",
    "host_waits_all": "for the whole GPU",
    "barrier": "for all ranks (barrier)",
}


@dataclass(frozen=True)
class Kind:
    """Operations of a name: calls, the kernels that they launch, the bytes these move and their floating-point work."""

    name: str
    calls: int = 0
    kernels: int = 0
    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Kind) -> Kind:
        return Kind(
            self.name,
            self.calls + other.calls,
            self.kernels + other.kernels,
            self.bytes + other.bytes,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Communication:
    """Communications of a kind in a group: calls and the bytes of all of them, as the program counts them.

    `axis` is what the program calls the group.
    """

    kind: str
    axis: str
    ranks: tuple[int, ...]
    calls: int
    bytes: float


@dataclass(frozen=True)
class Summary:
    """A rank's part of a recording, counted.

    Attributes
    ----------
    operations
        Kinds with kernels, those that move most first; then kinds without.
    waits
        How often the host waits, by what for.
    host
        Operations on tensors in the host's memory: calls, and the bytes that they move.
    regions
        Calls of compiled functions, their backward ones too.
    alive, storages
        Bytes and number of the storages that the step found.
    """

    rank: int
    represents: tuple[int, ...]
    operations: tuple[Kind, ...]
    communications: tuple[Communication, ...]
    waits: Mapping[str, int]
    host: tuple[Kind, ...]
    regions: int
    events: int
    alive: int
    storages: int


def summary(recording: Recording, rank: RankRecording) -> Summary:
    """Counts what one rank asked for."""
    return Summary(
        rank.rank,
        rank.represents,
        _operations(recording, rank.events),
        _communications(recording, rank.events),
        _waits(rank.events),
        _of_the_host(rank.events),
        sum(1 for event in rank.events if event.kind == "region"),
        len(rank.events),
        sum(rank.alive.values()),
        len(rank.alive),
    )


def _operations(recording: Recording, events: Iterable[Event]) -> tuple[Kind, ...]:
    calls = Counter(e.values["operation"] for e in events if e.kind in OPERATIONS)
    return _by_name(
        _kind(recording.operations[number], count) for number, count in calls.items()
    )


def _kind(operation: Operation, count: int) -> Kind:
    kernels = kernels_of(operation)
    moved = sum(kernel.bytes for kernel in kernels) * count
    work = sum(kernel.flops for kernel in kernels) * count
    return Kind(base(operation), count, len(kernels) * count, moved, work)


def _of_the_host(events: Iterable[Event]) -> tuple[Kind, ...]:
    return _by_name(
        Kind(
            str(event.values["operation"]).partition("::")[2],
            calls=1,
            bytes=float(event.values["bytes"]),
        )
        for event in events
        if event.kind == "host_computes"
    )


def _by_name(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Kinds of the same name as one, those that move most first."""
    sums: dict[str, Kind] = {}
    for kind in kinds:
        sums[kind.name] = sums.get(kind.name, Kind(kind.name)) + kind
    return tuple(sorted(sums.values(), key=lambda kind: (-kind.bytes, kind.name)))


def host_bytes(events: Iterable[Event]) -> float:
    """What a rank's host computes itself, in bytes of its memory."""
    return sum(kind.bytes for kind in _of_the_host(events))


def _communications(
    recording: Recording, events: Iterable[Event]
) -> tuple[Communication, ...]:
    calls: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    sizes: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for event in events:
        if event.kind == "communicate":
            group = event.values["group"]
            key = event.values["kind"], recording.axis(group), recording.groups[group]
            calls[key] += 1
            sizes[key] += event.values["bytes"]
    ordered = sorted(calls, key=lambda key: (-sizes[key], key))
    return tuple(
        Communication(*key, calls=calls[key], bytes=float(sizes[key]))
        for key in ordered
    )


def _waits(events: Iterable[Event]) -> dict[str, int]:
    waits: Counter[str] = Counter()
    for event in events:
        if event.kind in WAITS:
            waits[WAITS[event.kind]] += 1
        elif event.kind in ("read", "waits_for_copy"):
            name = str(event.values["operation"]).replace("::", ".")
            waits[f"for data that it reads ({name})"] += 1
    return dict(waits.most_common())


def ranges(ranks: Iterable[int]) -> str:
    """ "0-3, 8, 10-12"; of ranks at equal distances "0, 8, ..., 56"."""
    ordered = sorted(ranks)
    steps = {b - a for a, b in pairwise(ordered)}
    if len(ordered) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}, {ordered[1]}, ..., {ordered[-1]}"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs
    )


#: Value of an event's "backward" for what a checkpointed layer computes again.
AGAIN = 2
#: Most channels of a picture that nothing has worked on.
COLOURS = 4
#: Fused attention's backward computes the scores again: five products, of which four are the gradients'
#: (FlashAttention-2, arXiv 2307.08691, section 4.1: backward has 2.5 times the arithmetic of forward).
GRADIENTS_OF_ATTENTION = 4 / 5


def reads_of(recording: Recording) -> tuple[float, str]:
    """What a step reads over all ranks: tokens looked up in the largest table, else pictures that a filter sees.

    Ranks that share a sample count it each. (nan, "steps") of programs that do neither.
    """
    seen: Counter[tuple[bool, int]] = Counter()
    for rank in recording.ranks:
        for event in rank.events:
            if event.values.get("backward", AGAIN) or "operation" not in event.values:
                continue
            called = recording.operations[event.values["operation"]]
            first, second = (*called.operands, None, None)[:2]
            if first is None or second is None:
                continue
            if called.operator == "aten::embedding":
                seen[True, first.elements] += second.elements * len(rank.represents)
            elif "convolution" in called.operator and first.shape[1] <= COLOURS:
                seen[False, second.elements] += first.shape[0] * len(rank.represents)
    most = max(seen, default=(False, 0))
    return (seen[most] or math.nan, ("images", "tokens")[most[0]] if seen else "steps")


def model_flops(recording: Recording, kernels: Sequence[Sequence[Kernel]]) -> float:
    """Flops of a step over all ranks, as MFU counts them: recomputation is left out.

    Parameters
    ----------
    kernels
        The kernels of every operation of the recording.

    Returns
    -------
    float
        nan where the file does not tell recomputation from backward.
    """
    if not recording.recomputation:
        return math.nan
    useful = [math.fsum(map(_useful, each)) for each in kernels]
    return math.fsum(
        _of_rank(rank, useful) * len(rank.represents) for rank in recording.ranks
    )


def _of_rank(rank: RankRecording, useful: Sequence[float]) -> float:
    return math.fsum(
        useful[event.values["operation"]]
        for event in rank.events
        if event.values.get("backward", AGAIN) != AGAIN and "operation" in event.values
    )


def _useful(kernel: Kernel) -> float:
    """Flops of a kernel that its model asks for."""
    is_backward = kernel.kind.endswith("_backward") and "attention" in kernel.kind
    return kernel.flops * (GRADIENTS_OF_ATTENTION if is_backward else 1.0)
