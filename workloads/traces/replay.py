"""A recorded run as an operation graph: recorded kernels and host gaps, communication that can be played anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sim.graph.kernel import Kernel
from sim.graph.opgraph import COMM, KERNEL, SYNC, Comm, OpGraph, Program
from workloads.lowered import Layout, Lowered
from workloads.traces.dependencies import connect
from workloads.traces.draft import Draft, Node, draft_of
from workloads.traces.kernels import kernel_of
from workloads.traces.matching import Meeting, match
from workloads.traces.pairing import pair
from workloads.traces.schema import Recording
from workloads.traces.work import GPU, Work, work_of


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
    origin = min(r.origin for r in recordings)
    world = max([r.world for r in recordings] + [r.rank + 1 for r in recordings])
    works = []
    for recording in recordings:
        work = work_of(recording)
        connect(work)
        work.calls.clear()  # rows of the table, needed no more: of many ranks they fill the memory
        work.shift((recording.origin - origin) * 1e-9)
        works.append(work)
    renamed = pair(works)
    meetings, notes = match(works, world)
    notes += renamed
    first = min(
        min(op.start if op.issue == -inf else op.issue for op in work.ops)
        for work in works
    )
    for work in works:
        work.shift(-first)
        notes.update(work.notes)
    if len(works) == 1 and not meetings:
        notes["ranks of the job that this one did not talk to, left out"] += world - 1
        world = 1
    if len(works) < world:
        notes[
            f"ranks of {world} that were not recorded: they do what the recorded ones do"
        ] += world - len(works)
    uneven = max(len(w.steps) for w in works) - min(len(w.steps) for w in works)
    notes["steps that not all ranks recorded, left out of the comparison"] += uneven
    device = next((r.device for r in recordings if r.device), "")
    nccl = next((r.nccl for r in recordings if r.nccl), "")
    return Job(
        tuple(works),
        tuple(meetings),
        world,
        device,
        nccl,
        Counter({k: n for k, n in notes.items() if n}),
    )


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
    used: dict[int, int] = {}
    meetings, arrivals = list[Meeting](), Counter[int]()
    streams: dict[int, int] = {}
    for nodes in draft.programs.values():
        for node in nodes:
            if node.kind == GPU:
                streams.setdefault(node.stream, len(streams))
            for meeting in node.comms:
                if id(meeting) not in used:
                    used[id(meeting)] = len(meetings)
                    meetings.append(meeting)
                arrivals[used[id(meeting)]] += 1
    kernels, durations, programs = list[Kernel](), list[float](), []
    for rank, nodes in draft.programs.items():
        programs.append(_program(rank, nodes, used, streams, kernels, durations))
    played = set(draft.programs)
    comms = tuple(
        Comm(
            m.op,
            m.size,
            (m.ranks,),
            m.axis,
            arrivals[i],
            m.in_place,
            m.sender if m.sender in played else -1,
        )
        for i, m in enumerate(meetings)
    )
    names = tuple(f"stream {stream & 0xFFFFFFFF}" for stream in streams)
    represents: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in draft.programs}
    phases = ("compute", "host", "", "communication")
    graph = OpGraph(
        tuple(programs), tuple(kernels), comms, names, phases, represents, draft.queue
    )
    layout = Layout(draft.world, 1, 1)  # axes are those of the communications
    return Replay(
        Lowered(graph, {}, {}, 0, layout),
        np.array(durations),
        tuple(meetings),
        tuple(map(tuple, draft.programs.values())),
        job,
        draft,
    )


def _program(
    rank: int,
    nodes: list[Node],
    used: dict[int, int],
    streams: dict[int, int],
    kernels: list[Kernel],
    durations: list[float],
) -> Program:
    place = {id(node): i for i, node in enumerate(nodes)}
    payload, parts = [], list[tuple[int, ...]]()
    for node in nodes:
        if node.comms:
            payload.append(len(parts))
            parts.append(tuple(used[id(meeting)] for meeting in node.comms))
        elif node.kind == GPU:
            payload.append(len(kernels))
            kernels.append(kernel_of(node.op))
            durations.append(node.duration)
        else:
            payload.append(0)
    zero = np.zeros(len(nodes), int)
    return Program(
        rank=rank,
        kind=np.array(
            [COMM if n.comms else KERNEL if n.kind == GPU else SYNC for n in nodes], int
        ),
        stream=np.array(
            [streams[n.stream] if n.kind == GPU else 0 for n in nodes], int
        ),
        payload=np.array(payload, int),
        host=np.array([n.host for n in nodes]),
        deps=tuple(
            tuple(place[id(d)] for d in n.deps if id(d) in place) for n in nodes
        ),
        phase=zero,
        layer=zero,
        microbatch=np.array([n.op.step for n in nodes], int),
        parts=tuple(parts),
        names=tuple(n.op.name for n in nodes),
        gap=np.array([n.gap for n in nodes]),
        latency=np.array([n.latency for n in nodes]),
    )
