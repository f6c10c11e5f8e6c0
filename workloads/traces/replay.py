"""A recorded run as an operation graph: recorded kernels and host gaps, communication that can be played anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NoReturn

import numpy as np

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Comm, OpGraph, Program
from prestep.workloads.job.limits import RANKS
from prestep.workloads.lowered import Layout, Lowered
from prestep.workloads.traces.dependencies import connect
from prestep.workloads.traces.draft import Draft, Node, draft_of
from prestep.workloads.traces.issue_order import work_of
from prestep.workloads.traces.kernels import kernel_of
from prestep.workloads.traces.matching import match, pair
from prestep.workloads.traces.schema import Recording
from prestep.workloads.traces.work import GPU, Meeting, Work


@dataclass(frozen=True)
class Job:
    """The recorded ranks of one run, put together.

    Attributes
    ----------
    works : tuple of Work
        What each recorded rank did, on one clock that starts at 0.
    meetings : tuple of Meeting
        Collectives and transfers.
    world : int
        Ranks of the job.
    device, nccl : str
        GPU and NCCL version, where recorded.
    notes : dict
        What was inferred, repaired and left out, with how often.
    """

    works: tuple[Work, ...]
    meetings: tuple[Meeting, ...]
    world: int
    device: str
    nccl: str
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def steps(self) -> list[str]:
        """Names of the steps that every rank recorded, in order."""
        common = set.intersection(
            *({name for name, _, _ in work.steps} for work in self.works)
        )
        return [name for name, _, _ in self.works[0].steps if name in common]

    def draft(self) -> Draft:
        """The same, to be changed."""
        return draft_of(self.works, self.meetings, self.world)


def assemble(recordings: Sequence[Recording]) -> Job:
    """One job of the recordings of its ranks.

    Raises
    ------
    InputError
        If the ranks cannot be of one run.
    """
    world = max([r.world for r in recordings] + [r.rank + 1 for r in recordings])
    if world > RANKS:
        _too_large(recordings, world)
    works = _works(recordings)
    renamed = pair(works)
    meetings, notes = match(works, world)
    notes += renamed
    _start_at_zero(works)
    for work in works:
        notes.update(work.notes)
    if len(works) == 1 and not meetings:
        notes["ranks of the job that this one did not talk to, left out"] += world - 1
        world = 1
    _note_absence(notes, works, world)
    return Job(
        tuple(works),
        tuple(meetings),
        world,
        device=next((r.device for r in recordings if r.device), ""),
        nccl=next((r.nccl for r in recordings if r.nccl), ""),
        notes=Counter({note: count for note, count in notes.items() if count}),
    )


def _too_large(recordings: Sequence[Recording], world: int) -> NoReturn:
    """Refuses a job that no cluster could run."""
    worst = max(recordings, key=lambda one: max(one.world, one.rank + 1))
    expected = f"a job of at most {RANKS} ranks"
    raise InputError.of(worst.path, "world size", str(world), expected)


def _note_absence(notes: Counter[str], works: Sequence[Work], world: int) -> None:
    """Counts the ranks and the steps that were not recorded."""
    if len(works) < world:
        unrecorded = f"ranks of {world} that were not recorded: they do what the recorded ones do"
        notes[unrecorded] += world - len(works)
    counts = [len(work.steps) for work in works]
    uneven = max(counts) - min(counts)
    notes["steps that not all ranks recorded, left out of the comparison"] += uneven


def _works(recordings: Sequence[Recording]) -> list[Work]:
    """What every rank did, on one clock, with who waits for whom on the rank."""
    origin = min(r.origin for r in recordings)
    works = []
    for recording in recordings:
        work = work_of(recording)
        connect(work)
        work.calls.clear()  # rows of the table, needed no more: of many ranks they fill the memory
        work.shift((recording.origin - origin) * 1e-9)
        works.append(work)
    return works


def _start_at_zero(works: Sequence[Work]) -> None:
    """Moves all times so that the first operation of any rank is at 0."""
    first = min(
        op.start if op.issue == -inf else op.issue for work in works for op in work.ops
    )
    for work in works:
        work.shift(-first)


@dataclass(frozen=True)
class Replay:
    """A recorded run, lowered, with what the engine needs beside it.

    Attributes
    ----------
    lowered : Lowered
        One program per rank that is played; memory and parameters are not recorded.
    duration : np.ndarray
        Seconds of every kernel of the graph.
    meetings : tuple of Meeting
        What the communications of the graph were, by index.
    programs : tuple
        Nodes of every program, in order.
    job, draft
        What it was made from.
    """

    lowered: Lowered
    duration: np.ndarray
    meetings: tuple[Meeting, ...]
    programs: tuple[tuple[Node, ...], ...]
    job: Job
    draft: Draft

    @property
    def graph(self) -> OpGraph:
        return self.lowered.graph


def graph_of(job: Job, draft: Draft) -> Replay:
    """The operation graph of a draft: all its steps, once."""
    entries = _entries_of(draft)
    programs = tuple(
        _program(rank, nodes, entries) for rank, nodes in draft.programs.items()
    )
    graph = OpGraph(
        programs,
        tuple(entries.kernels),
        tuple(_comm(entries, meeting, draft) for meeting in entries.meetings),
        streams=tuple(f"stream {stream & 0xFFFFFFFF}" for stream in entries.streams),
        phases=("compute", "host", "", "communication"),
        represents={rank: (rank,) for rank in draft.programs},
        launch_limit=draft.queue,
    )
    layout = Layout(draft.world, 1, 1)  # axes are those of the communications
    return Replay(
        Lowered(graph, {}, {}, 0, layout),
        np.array(entries.durations),
        tuple(entries.meetings),
        tuple(map(tuple, draft.programs.values())),
        job,
        draft,
    )


@dataclass
class _Entries:
    """Tables of the graph, to which the nodes of all programs refer by index.

    Attributes
    ----------
    streams : dict
        Recorded stream -> index.
    meetings, place, arrivals : list of Meeting, dict, Counter
        Communications; identity of a meeting -> index; index -> how many nodes arrive at it.
    kernels, durations : list of Kernel, list of float
        Kernels and their seconds.
    """

    streams: dict[int, int] = field(default_factory=dict)
    meetings: list[Meeting] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    arrivals: Counter[int] = field(default_factory=Counter)
    kernels: list[Kernel] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)

    def arrive(self, meeting: Meeting) -> None:
        """Counts a node that takes part in a meeting."""
        index = self.place.setdefault(id(meeting), len(self.meetings))
        if index == len(self.meetings):
            self.meetings.append(meeting)
        self.arrivals[index] += 1


def _entries_of(draft: Draft) -> _Entries:
    """Streams and meetings of all programs, in the order in which they first occur."""
    entries = _Entries()
    for nodes in draft.programs.values():
        for node in nodes:
            if node.kind == GPU:
                entries.streams.setdefault(node.stream, len(entries.streams))
            for meeting in node.comms:
                entries.arrive(meeting)
    return entries


def _comm(entries: _Entries, meeting: Meeting, draft: Draft) -> Comm:
    """A meeting as a communication of the graph."""
    return Comm(
        meeting.op,
        meeting.size,
        (meeting.ranks,),
        meeting.axis,
        entries.arrivals[entries.place[id(meeting)]],
        meeting.in_place,
        meeting.sender if meeting.sender in draft.programs else -1,
    )


def _program(rank: int, nodes: list[Node], entries: _Entries) -> Program:
    """The program of a rank; adds its kernels to the entries."""
    payload, parts = _payload(nodes, entries)
    streams = [entries.streams[n.stream] if n.kind == GPU else 0 for n in nodes]
    zero = np.zeros(len(nodes), int)
    return Program(
        rank=rank,
        kind=np.array([_kind(n) for n in nodes], int),
        stream=np.array(streams, int),
        payload=np.array(payload, int),
        host=np.array([n.host for n in nodes]),
        deps=_dependencies(nodes),
        phase=zero,
        layer=zero,
        microbatch=np.array([n.op.step for n in nodes], int),
        parts=tuple(parts),
        names=tuple(n.op.name for n in nodes),
        gap=np.array([n.gap for n in nodes]),
        latency=np.array([n.latency for n in nodes]),
    )


def _dependencies(nodes: list[Node]) -> tuple[tuple[int, ...], ...]:
    """Places in the program of what every node waits for; what was taken out of the program counts no more."""
    place = {id(node): i for i, node in enumerate(nodes)}
    return tuple(tuple(place[id(d)] for d in n.deps if id(d) in place) for n in nodes)


def _kind(node: Node) -> int:
    """The kind of a node in the graph."""
    if node.comms:
        return COMM
    return KERNEL if node.kind == GPU else SYNC


def _payload(
    nodes: list[Node], entries: _Entries
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Index of every node's kernel or part, and the parts: the communications of one node each."""
    payload, parts = list[int](), list[tuple[int, ...]]()
    for node in nodes:
        if node.comms:
            payload.append(len(parts))
            parts.append(tuple(entries.place[id(meeting)] for meeting in node.comms))
        elif node.kind == GPU:
            payload.append(len(entries.kernels))
            entries.kernels.append(kernel_of(node.op))
            entries.durations.append(node.duration)
        else:
            payload.append(0)
    return payload, parts
