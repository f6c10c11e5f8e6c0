"""Replays recorded runs: traces -> operation graph -> the ordinary engine -> steps beside the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from sim.collectives import plan_collective
from sim.collectives.plan import Plan, Settings
from sim.costs.interference import contention
from sim.engine import Machine, Run, execute
from sim.errors import InputError, Mistake
from workloads import traces
from workloads.traces.replay import Job, Replay, assemble, graph_of
from workloads.traces.work import GPU, MARK

if TYPE_CHECKING:
    from sim.opgraph import Comm
    from workloads.traces.matching import Meeting
    from topologies.fabric import Fabric

Mode = Literal["recorded", "simulated"]
# Clusters that stand for a recorded GPU where none is named: (word in its name, bundled cluster), best first.
CLUSTERS = (("H200", "h200-host-4"), ("H200", "dgx-h200"), ("H100", "dgx-h100"), ("H800", "dgx-h100"),
            ("A100", "dgx-a100"), ("B200", "dgx-b200"))  # fmt: skip
# Collectives of this size are bound by bandwidth, bytes.
LARGE = 1 << 20
# A transfer longer than this factor of what it should take has waited for a rank that was not recorded; kernels beside
# it slow a transfer by up to about a fifth.
LATE = 1.25
# A GPU this far behind its host at the ends of steps is what the step waits for; share of the step.
BEHIND = 0.1


@dataclass(frozen=True)
class StepTime:
    """One step of one rank, in seconds: on the host's clock (its annotation), and on the GPU's."""

    rank: int
    step: str
    measured_host: float
    simulated_host: float
    measured_gpu: float
    simulated_gpu: float

    def on(self, clock: str) -> tuple[float, float]:
        """(measured, simulated) on a clock."""
        return (
            (self.measured_gpu, self.simulated_gpu) if clock == "gpu" else (self.measured_host, self.simulated_host)
        )


@dataclass(frozen=True)
class Outcome:
    """What a replay gives.

    `clock` says which of a step's two lengths is its time: "gpu" where the GPU runs behind its host.
    """

    replay: Replay
    run: Run
    mode: Mode
    cluster: str
    steps: tuple[StepTime, ...]
    clock: str
    changes: tuple[str, ...] = ()
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """Largest error of a step, relative."""
        return max((abs(s / m - 1.0) for m, s in (step.on(self.clock) for step in self.steps) if m > 0), default=0.0)


def replay_files(
    paths: Sequence[str | Path],
    mode: Mode = "recorded",
    cluster: str = "",
    changes: Sequence[str] = (),
    clock: str = "auto",
) -> Outcome:
    """Replays the traces of one run.

    Raises
    ------
    InputError
        For traces that cannot be read or do not belong together, and clusters that do not fit.
    """
    job = assemble(traces.read(paths))
    return replay_job(job, mode, cluster, changes, clock)


def replay_job(
    job: Job, mode: Mode = "recorded", cluster: str = "", changes: Sequence[str] = (), clock: str = "auto"
) -> Outcome:
    """Executes a recorded run; see :func:`replay_files`."""
    if not job.steps:
        names = "; ".join(f"rank {w.rank}: {', '.join(name for name, _, _ in w.steps)}" for w in job.works)
        raise InputError(Mistake("traces", "steps", names, "steps that all ranks recorded"))
    fabric = _fabric(job, cluster, changes) if mode == "simulated" else None
    before = fabric if fabric is None or not changes else _fabric(job, cluster, ())
    replay = graph_of(job)
    notes = dict(job.notes)
    run = execute(replay.graph, _machine(replay, fabric, before, notes), steps=1)
    times = tuple(_step_times(job, run))
    name = fabric.name if fabric is not None else ""
    return Outcome(replay, run, mode, name, times, _clock(clock, job, run), tuple(changes), notes)


def _fabric(job: Job, cluster: str, changes: Sequence[str]) -> Fabric:
    from topologies import load_cluster

    overrides = {}
    for change in changes:
        key, _, value = change.partition("=")
        overrides[key.strip()] = value.strip()
    if not cluster:
        fitting = [name for word, name in CLUSTERS if word in job.device]
        cluster = next((name for name in fitting if len(load_cluster(name).gpus) >= job.world), "")
    if not cluster:
        found = f"{job.world} ranks on {job.device or 'a GPU that the traces do not name'}"
        raise InputError(Mistake("--cluster", "", found, "a cluster", "name one: `prestep list clusters`"))
    fabric = load_cluster(cluster, overrides=overrides)
    if len(fabric.gpus) < job.world:
        raise InputError(Mistake(cluster, "", f"{len(fabric.gpus)} GPUs", f"at least {job.world}, one for each rank"))
    return fabric


def _machine(replay: Replay, fabric: Fabric | None, before: Fabric | None, notes: dict[str, int]) -> Machine:
    """Recorded kernels, and communication as recorded or on a fabric (`before`: the same without changes)."""
    job = replay.job
    recorded = {id(comm): m for comm, m in zip(replay.graph.comms, job.meetings, strict=True)}
    settings = Settings(version=job.nccl) if job.nccl else Settings()
    pure = _fastest(job)

    def on(fabric: Fabric, comm: Comm) -> Plan:
        # NCCL chooses the channels of a transfer by the size of its communicator: the peers are named after the pair.
        extra = [r for r in range(job.world) if r not in comm.groups[0]] if comm.op == "send" else []
        members = [fabric.gpus[r] for r in (*comm.groups[0], *extra)]
        return plan_collective(comm.op, comm.size, members, fabric, settings, comm.in_place)

    def plan(comm: Comm) -> Plan:
        meeting = recorded[id(comm)]
        if fabric is None or before is None or len(comm.groups[0]) < 2:
            return _as_recorded(comm, meeting.duration)
        if comm.size <= 0:
            text = "collectives of unknown size, played as recorded"
            notes[text] = notes.get(text, 0) + 1
            return _as_recorded(comm, meeting.duration)
        planned = on(fabric, comm)
        expected = max(pure(meeting), on(before, comm).duration(before.links.bandwidth))
        if meeting.missing and meeting.duration > LATE * expected:
            # Ranks that were not recorded came later than the recorded ones, as they would again.
            return replace(planned, latency=planned.latency + meeting.duration - expected)
        return planned

    bandwidth = fabric.links.bandwidth if fabric is not None else np.zeros(0)
    beside = contention() if fabric is not None else 1.0
    return Machine(replay.duration, lambda k, c: 1.0, plan, bandwidth, beside, 0.0, 0.0, {}, exclusive=False)


def _fastest(job: Job) -> Callable[[Meeting], float]:
    """Shortest time that this job's collectives of a kind took, by size: there nobody was waited for."""
    alike: dict[tuple[object, ...], float] = {}
    rate: dict[tuple[object, ...], float] = {}
    for m in job.meetings:
        alike[m.op, m.ranks, m.size] = min(alike.get((m.op, m.ranks, m.size), m.duration), m.duration)
        if m.size >= LARGE and m.duration > 0:
            rate[m.op, m.ranks] = max(rate.get((m.op, m.ranks), 0.0), m.size / m.duration)

    def fastest(m: Meeting) -> float:
        known = rate.get((m.op, m.ranks), 0.0)
        bound = m.size / known if m.size >= LARGE and known > 0 else 0.0
        return min(alike[m.op, m.ranks, m.size], bound) if bound else alike[m.op, m.ranks, m.size]

    return fastest


def _as_recorded(comm: Comm, duration: float) -> Plan:
    """A communication of fixed length that uses no link."""
    none = np.zeros(0)
    ranks = tuple(map(str, comm.groups[0]))
    return Plan(comm.op, 0.0, ranks, "recorded", "", 0, duration, none.astype(int), none, 1.0, "measured")


def _step_times(job: Job, run: Run) -> list[StepTime]:
    times = []
    for index, work in enumerate(job.works):
        start, end = run.start[index][0].tolist(), run.end[index][0].tolist()
        marks = {op.name: start[i] for i, op in enumerate(work.ops) if op.kind == MARK}
        before = _gpu_ends(work, [op.finish for op in work.ops])
        after = _gpu_ends(work, end)
        for k, (name, begin, finish) in enumerate(work.steps):
            if name not in job.steps:
                continue
            begun, done = marks[f"begin {name}"], marks[f"end {name}"]
            measured = before[k] - max(before[k - 1], begin if k == 0 else 0.0)
            simulated = after[k] - max(after[k - 1], begun if k == 0 else 0.0)
            times.append(StepTime(work.rank, name, finish - begin, done - begun, measured, simulated))
    return times


def _gpu_ends(work: object, ends: list[float]) -> dict[int, float]:
    """Step -> end of the last GPU work issued in it or before; -1: before the first step."""
    from workloads.traces.work import Work

    if not isinstance(work, Work):
        raise TypeError("a rank's work")
    found = dict.fromkeys(range(-1, len(work.steps)), 0.0)
    for op, end in zip(work.ops, ends, strict=True):
        if op.kind == GPU:
            found[op.step] = max(found[op.step], end)
    latest = 0.0
    for step in sorted(found):
        latest = found[step] = max(found[step], latest)
    return found


def _clock(asked: str, job: Job, run: Run) -> str:
    """The clock of the steps: the GPU's if on any rank it ends steps far behind the host, and more than one is there."""
    if asked != "auto":
        return asked
    for index, work in enumerate(job.works):
        start, end = run.start[index][0].tolist(), run.end[index][0].tolist()
        marks = {op.name: start[i] for i, op in enumerate(work.ops) if op.kind == MARK}
        before = any(op.step < 0 for op in work.ops if op.kind == GPU)
        if len(work.steps) < 2 and not before:
            continue
        measured, simulated = _gpu_ends(work, [op.finish for op in work.ops]), _gpu_ends(work, end)
        for k, (name, begin, finish) in enumerate(work.steps):
            behind = measured[k] - finish, simulated[k] - marks[f"end {name}"]
            if max(behind) > BEHIND * (finish - begin):
                return "gpu"
    return "host"
