"""Replays recorded runs: traces -> operation graph -> the ordinary engine -> steps beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

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
from sim.replay.outcome import Mode, Outcome, StepTime, of_steps
from topologies.fabric import Fabric
from workloads import traces
from workloads.traces import retarget
from workloads.traces.changes import parse, scale
from workloads.traces.draft import Draft
from workloads.traces.files import uncollected
from workloads.traces.replay import Job, Replay, assemble, graph_of
from workloads.traces.work import GPU, MARK, Op

# A link this many times faster is free; its latency stays.
FREE = "1000000x"
# A GPU this far behind its host at the ends of steps is what the step waits for; share of the step.
BEHIND = 0.1


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
            rows = _if_free(job, outcome, cluster, changes)
            outcome = replace(outcome, free=tuple(rows))
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
    asked, draft = parse(changes), job.draft()
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
        scale(draft, together(target, draft.world))


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


def _if_free(
    job: Job, base: Outcome, cluster: str, changes: Sequence[str]
) -> list[dict[str, Any]]:
    """Step time if each kernel family, all communication, each kind of link or the host took no time.

    Rows of {"free", "step_time", "saved"} in seconds, the most saved first.
    """
    last = base.steps[-1].step
    rows = []
    for name, change in _free_changes(base):
        changed = replay_job(job, base.mode, cluster, [*changes, change], base.clock)
        time = of_steps(changed, last).step_time
        saved = base.step_time - time
        rows.append({"free": name, "step_time": time, "saved": saved})
    return sorted(rows, key=lambda row: -float(row["saved"]))


def _free_changes(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """What may be free, with the change that makes it so."""
    nodes = (node for nodes in outcome.replay.programs for node in nodes)
    for family in sorted({node.family for node in nodes if node.kind == GPU}):
        name = family if family == "communication" else f"{family} kernels"
        yield name, f"kernels.{family.replace(' ', '_')}=0"
    for kind in _kinds(outcome):
        yield f"{kind} links", f"{kind}.bandwidth={FREE}"
    yield "host", "host_factor=0"


def _kinds(outcome: Outcome) -> list[str]:
    """Kinds of the links that carried anything."""
    if outcome.fabric is None:
        return []
    links = outcome.fabric.links
    return sorted({str(links.kind[i]) for i in np.flatnonzero(outcome.run.carried > 0)})
