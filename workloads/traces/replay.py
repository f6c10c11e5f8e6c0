"""A recorded run as an operation graph: recorded kernels and host gaps, communication that can be played anew.

Every operation keeps two recorded times: `latency` after its launch and `gap` after whatever it followed on the GPU.
The one that held in the recording is exact; the other is the usual one of the trace, for the day when it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

import numpy as np

from sim.costs.kernel import Kernel
from sim.opgraph import COMM, KERNEL, SYNC, Comm, OpGraph, Program
from workloads.traces.dependencies import connect
from workloads.traces.families import family
from workloads.traces.matching import Meeting, match
from workloads.traces.schema import Recording
from workloads.traces.work import GPU, Op, Work, work_of
from workloads.traces.work import SYNC as SYNC_CALL

# Longest times that count as usual: a launch to its start on an idle GPU, and a gap between two kernels, s.
USUAL_LATENCY, USUAL_GAP = 30e-6, 5e-6
LAUNCH_QUEUE = 1024  # launches a stream holds before the host waits; CUDA's, measured in traces: 1 000 to 1 030


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
        common = set.intersection(*({name for name, _, _ in work.steps} for work in self.works))
        return [name for name, _, _ in self.works[0].steps if name in common]


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
        work.shift((recording.origin - origin) * 1e-9)
        works.append(work)
    meetings, notes = match(works, world)
    first = min(min(op.start if op.issue == -inf else op.issue for op in work.ops) for work in works)
    for work in works:
        work.shift(-first)
        notes.update(work.notes)
    if len(works) < world:
        notes[f"ranks of {world} that were not recorded: they do what the recorded ones do"] += world - len(works)
    device = next((r.device for r in recordings if r.device), "")
    nccl = next((r.nccl for r in recordings if r.nccl), "")
    return Job(tuple(works), tuple(meetings), world, device, nccl, Counter({k: n for k, n in notes.items() if n}))


@dataclass(frozen=True)
class Replay:
    """A graph with what the engine needs beside it.

    Attributes
    ----------
    graph : OpGraph
        One program per recorded rank; communication by index as in ``job.meetings``.
    duration : np.ndarray
        Seconds of every kernel of the graph.
    job : Job
        What was recorded.
    """

    graph: OpGraph
    duration: np.ndarray
    job: Job


def graph_of(job: Job) -> Replay:
    """The operation graph of a recorded run (all its steps, once)."""
    kernels, durations, programs = list[Kernel](), list[float](), []
    kinds: dict[str, Kernel] = {}
    streams: dict[int, int] = {}
    phases = ("compute", "host", "", "communication")
    for work in job.works:
        for op in work.ops:
            if op.kind == GPU:
                streams.setdefault(op.stream, len(streams))
    queue = LAUNCH_QUEUE
    for work in job.works:
        payload, parts = [], []
        for op in work.ops:
            if op.comms:
                payload.append(len(parts))
                parts.append(op.comms)
            elif op.kind == GPU:
                payload.append(len(kernels))
                name = family(op.name)
                kernels.append(kinds.setdefault(name, Kernel(name, ())))
                durations.append(op.end - op.start)
            else:
                payload.append(0)
        programs.append(_program(work, payload, parts, streams))
        queue = max(queue, _outstanding(work.ops))
    comms = tuple(Comm(m.op, m.size, (m.ranks,), m.axis, len(m.members), sender=m.sender) for m in job.meetings)
    represents = {work.rank: (work.rank,) for work in job.works}
    names = tuple(f"stream {stream & 0xFFFFFFFF}" for stream in streams)
    graph = OpGraph(tuple(programs), tuple(kernels), comms, names, phases, represents, queue + 1)
    return Replay(graph, np.array(durations), job)


def _program(work: Work, payload: list[int], parts: list[tuple[int, ...]], streams: dict[int, int]) -> Program:
    ops = work.ops
    gap, latency = _waits(ops)
    zero = np.zeros(len(ops), int)
    return Program(
        rank=work.rank,
        kind=np.array([COMM if op.comms else KERNEL if op.kind == GPU else SYNC for op in ops], int),
        stream=np.array([streams[op.stream] if op.kind == GPU else 0 for op in ops], int),
        payload=np.array(payload, int),
        host=_host(ops),
        deps=tuple(tuple(op.deps) for op in ops),
        phase=zero,
        layer=zero,
        microbatch=np.array([op.step for op in ops], int),
        parts=tuple(parts),
        names=tuple(op.name for op in ops),
        gap=gap,
        latency=latency,
    )


def _host(ops: list[Op]) -> np.ndarray:
    """Seconds of the host before each operation: from the one before, or from the end of a synchronisation."""
    cost, clock = np.zeros(len(ops)), 0.0
    for i, op in enumerate(ops):
        if op.issue == -inf:
            continue
        cost[i] = max(0.0, op.issue - clock)
        clock = max(clock, op.issue)
        if op.kind == SYNC_CALL:
            # What the call took after its work was done, or without any, stays host time.
            clock = max([clock, *(ops[d].end for d in op.deps)])
    return cost


def _waits(ops: list[Op]) -> tuple[np.ndarray, np.ndarray]:
    """(gap, latency) of every operation; see the module."""
    gap, latency = np.zeros(len(ops)), np.zeros(len(ops))
    ready, last = [-inf] * len(ops), dict[int, float]()
    for i, op in enumerate(ops):
        if op.kind == GPU:
            ready[i] = max([last.get(op.stream, -inf), *(ops[d].end for d in op.deps)])
            last[op.stream] = op.end
    after = [op.start - ready[i] for i, op in enumerate(ops) if 0 <= op.start - ready[i] < USUAL_GAP]
    soon = [
        op.start - op.issue
        for i, op in enumerate(ops)
        if op.kind == GPU and ready[i] <= op.issue and 0 <= op.start - op.issue < USUAL_LATENCY
    ]
    usual_gap, usual_latency = median(after) if after else 0.0, median(soon) if soon else 0.0
    for i, op in enumerate(ops):
        if op.kind != GPU:
            continue
        since_launch = op.start - op.issue if op.issue > -inf else op.start
        since_ready = max(0.0, op.start - ready[i])
        if ready[i] == -inf or op.issue > ready[i]:
            gap[i], latency[i] = min(usual_gap, since_ready), since_launch
        else:
            gap[i], latency[i] = since_ready, min(usual_latency, since_launch)
    return gap, latency


def _outstanding(ops: list[Op]) -> int:
    """Most operations that were issued before the oldest that had not ended: what the launch queue held."""
    most, oldest = 0, 0
    for i, op in enumerate(ops):
        while oldest < i and (ops[oldest].kind != GPU or ops[oldest].end <= op.issue):
            oldest += 1
        most = max(most, i - oldest)
    return most
