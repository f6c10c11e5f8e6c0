"""Replays recorded runs: traces -> operation graph -> the ordinary engine -> steps beside the measured ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sim.costs import Gpu
from sim.costs.measured import gpu_of
from sim.engine.engine import Run, execute
from sim.errors import InputError, Mistake
from sim.graph.kernel import Kernel
from sim.replay.machine import (
    beside_communication,
    fabric_of,
    nccl_settings,
    other_gpu,
    recorded_gpu,
    timed,
    together,
)
from workloads import traces
from workloads.traces import retarget
from workloads.traces.draft import Draft, Node
from workloads.traces.files import uncollected
from workloads.traces.replay import Job, Replay, assemble, graph_of
from workloads.traces.work import GPU, MARK, Op

if TYPE_CHECKING:
    from topologies.fabric import Fabric

Mode = Literal["recorded", "simulated"]
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
            (self.measured_gpu, self.simulated_gpu)
            if clock == "gpu"
            else (self.measured_host, self.simulated_host)
        )


@dataclass(frozen=True)
class Outcome:
    """What a replay gives.

    `clock` says which of a step's two lengths is its time: "gpu" where the GPU runs behind its host. `dropped` counts
    the events of the traces that have no part in the replay, with the reason.
    """

    replay: Replay
    run: Run
    mode: Mode
    cluster: str
    steps: tuple[StepTime, ...]
    clock: str
    changes: tuple[str, ...] = ()
    notes: dict[str, int] = field(default_factory=dict)
    dropped: tuple[dict[str, Any], ...] = ()
    fabric: Fabric | None = None
    free: tuple[dict[str, Any], ...] = ()

    @property
    def worst(self) -> float:
        """Largest error of a step, relative."""
        return max(
            (
                abs(s / m - 1.0)
                for m, s in (step.on(self.clock) for step in self.steps)
                if m > 0
            ),
            default=0.0,
        )


def replay_files(
    paths: Sequence[str | Path],
    mode: Mode | None = None,
    cluster: str = "",
    changes: Sequence[str] = (),
    clock: str = "auto",
    free: bool = False,
    steps: str = "",
) -> Outcome:
    """Replays the traces of one run; with `free`, also with each kind of link and kernel taking no time.

    `steps` says which steps to report ("2", "3-5,7", or names); all are played.

    Raises
    ------
    InputError
        For traces that cannot be read or do not belong together, and clusters that do not fit.
    """
    with uncollected():
        recordings = traces.read(paths)
        dropped = tuple(row for r in recordings for row in r.dropped.to_pylist())
        job = assemble(recordings)
        del recordings  # tables of many ranks, needed no more
        outcome = of_steps(replay_job(job, mode, cluster, changes, clock), steps)
        if free:
            from sim.replay.answers import if_free

            outcome = replace(
                outcome, free=tuple(if_free(job, outcome, cluster, changes))
            )
    return replace(outcome, dropped=dropped)


def replay_job(
    job: Job,
    mode: Mode | None = None,
    cluster: str = "",
    changes: Sequence[str] = (),
    clock: str = "auto",
) -> Outcome:
    """Executes a recorded run, changed or not; see :func:`replay_files`."""
    if not job.steps:
        names = "; ".join(
            f"rank {w.rank}: {', '.join(name for name, _, _ in w.steps)}"
            for w in job.works
        )
        raise InputError(
            Mistake("traces", "steps", names, "steps that all ranks recorded")
        )
    asked, draft = retarget.parse(changes), job.draft()
    mode = mode or ("simulated" if cluster or asked.communication else "recorded")
    if mode == "recorded" and asked.communication:
        found = "changes of the cluster or its communication"
        raise InputError(
            Mistake(
                "--comm", "", f"recorded, with {found}", "simulated", "leave --comm out"
            )
        )
    gpu = recorded_gpu(job)
    retarget.apply(
        draft, asked, lambda size: _scaling(gpu, size), beside_communication(gpu)
    )
    wanted = cluster or (mode == "simulated" and draft.world > 1)
    fabric = fabric_of(job, draft.world, cluster, asked.links) if wanted else None
    before = (
        fabric
        if not asked.links or fabric is None
        else fabric_of(job, draft.world, cluster, {})
    )
    _on_gpu(job, draft, gpu, fabric)
    replay = graph_of(job, draft)
    notes = dict(job.notes + draft.notes)
    if mode == "recorded":
        fabric = before = None
    played, unknown_sizes = timed(
        replay, fabric, before, nccl_settings(job, asked.nccl)
    )
    if unknown_sizes:
        notes["collectives of unknown size, played as recorded"] = unknown_sizes
    run = execute(played, steps=1)
    changed = (
        *draft.changes,
        *(
            f"{key} = {value}"
            for key, value in (*asked.links.items(), *asked.nccl.items())
        ),
    )
    times, on = _step_times(replay, run), _clock(clock, replay, run)
    on_cluster = fabric.name if fabric is not None else ""
    return Outcome(
        replay, run, mode, on_cluster, tuple(times), on, changed, notes, fabric=fabric
    )


def of_steps(outcome: Outcome, wanted: str) -> Outcome:
    """The outcome with some of its steps; answers are about the last of them.

    Raises
    ------
    InputError
        For steps that were not recorded.
    """
    known = list(dict.fromkeys(step.step for step in outcome.steps))
    kept, mistakes = set[str](), list[Mistake]()
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        low, dash, high = part.partition("-")
        ranged = low.isdigit() and (high.isdigit() or not dash)
        numbers = range(int(low), int(high or low) + 1) if ranged else range(0)
        found = {name for name in known if name == part or _number_of(name) in numbers}
        if not found:
            mistakes.append(
                Mistake(
                    "--steps",
                    part,
                    "no such step",
                    ", ".join(known),
                    "a number, 2-4, or a name",
                )
            )
        kept |= found
    if mistakes:
        raise InputError(mistakes)
    return (
        replace(outcome, steps=tuple(s for s in outcome.steps if s.step in kept))
        if wanted
        else outcome
    )


def _number_of(name: str) -> int:
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else -1


def last_step(outcome: Outcome, nodes: Sequence[Node]) -> int:
    """Number, among a rank's own steps, of the last step that is reported."""
    name = f"end {outcome.steps[-1].step}"
    return next(
        node.op.step for node in nodes if node.kind == MARK and node.op.name == name
    )


def _scaling(gpu: Gpu | None, size: float) -> float:
    """Seconds that a gradient takes to be scaled into its bucket."""
    if gpu is None:
        raise InputError(
            Mistake(
                "traces", "GPU", "one that prestep has no limits for", "a known GPU"
            )
        )
    return gpu.duration(Kernel("div", (max(1, int(size / 2)),), bytes=2.0 * size))


def _on_gpu(job: Job, draft: Draft, gpu: Gpu | None, fabric: Fabric | None) -> None:
    """Kernels as they run on the cluster's GPU, and on one that has come to work with others."""
    if fabric is None:
        return
    target = gpu_of(fabric)
    if gpu is None:
        draft.notes["kernels as recorded: the recorded GPU is not known"] += 1
    elif target.name != gpu.name:
        retarget.rescaled(draft, other_gpu(gpu, target, draft), target.name)
    if job.world == 1 and draft.world > 1:
        retarget.scale(draft, together(target, draft.world))


def _step_times(replay: Replay, run: Run) -> list[StepTime]:
    job, works = replay.job, {work.rank: work for work in replay.job.works}
    times = []
    for index, (program, nodes) in enumerate(
        zip(replay.graph.programs, replay.programs, strict=True)
    ):
        start, end = run.start[index][0].tolist(), run.end[index][0].tolist()
        work = works.get(program.rank)
        marks = {n.op.name: start[i] for i, n in enumerate(nodes) if n.kind == MARK}
        after = _gpu_ends([n.op for n in nodes], end)
        before = _gpu_ends(work.ops, [op.finish for op in work.ops]) if work else {}
        for k, (name, begin, finish) in enumerate(
            work.steps if work else job.works[0].steps
        ):
            if name not in job.steps:
                continue
            begun, done = marks[f"begin {name}"], marks[f"end {name}"]
            simulated = after[k] - max(after[k - 1], begun if k == 0 else 0.0)
            measured = (
                before[k] - max(before[k - 1], begin if k == 0 else 0.0)
                if work
                else nan
            )
            times.append(
                StepTime(
                    program.rank,
                    name,
                    finish - begin if work else nan,
                    done - begun,
                    measured,
                    simulated,
                )
            )
    return times


def _gpu_ends(ops: Sequence[Op], ends: Sequence[float]) -> dict[int, float]:
    """Step -> end of the last GPU work issued in it or before; -1: before the first step."""
    found = {-1: 0.0} | dict.fromkeys((op.step for op in ops), 0.0)
    for op, end in zip(ops, ends, strict=True):
        if op.kind == GPU:
            found[op.step] = max(found[op.step], end)
    latest = 0.0
    for step in sorted(found):
        latest = found[step] = max(found[step], latest)
    return found


def _clock(asked: str, replay: Replay, run: Run) -> str:
    """The clock of the steps: the GPU's if on any rank it ends steps far behind its host.

    One step alone has no end before it to count from; then it is the host's.
    """
    if asked != "auto":
        return asked
    for index, nodes in enumerate(replay.programs):
        start, end = run.start[index][0].tolist(), run.end[index][0].tolist()
        marks = {
            n.op.name: (n.op.start, start[i])
            for i, n in enumerate(nodes)
            if n.kind == MARK
        }
        ops = [n.op for n in nodes]
        steps = sorted({op.step for op in ops if op.kind == MARK})
        if len(steps) < 2 and not any(op.step < 0 for op in ops if op.kind == GPU):
            continue
        measured, simulated = (
            _gpu_ends(ops, [op.finish for op in ops]),
            _gpu_ends(ops, end),
        )
        names = {
            op.step: op.name.removeprefix("end ")
            for op in ops
            if op.kind == MARK and op.name[:4] == "end "
        }
        for k in steps:
            finish, done = marks[f"end {names[k]}"]
            behind = measured[k] - finish, simulated[k] - done
            if max(behind) > BEHIND * (finish - marks[f"begin {names[k]}"][0]):
                return "gpu"
    return "host"
