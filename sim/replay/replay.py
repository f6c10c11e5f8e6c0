"""Replays recorded runs: traces -> operation graph -> the ordinary engine -> steps beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from workloads.traces.changes import Changes, parse, scale
from workloads.traces.draft import Draft, Node
from workloads.traces.files import uncollected
from workloads.traces.replay import Job, Replay, assemble, graph_of
from workloads.traces.work import GPU, MARK, Op, Work

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
    _check_steps(job)
    asked, draft = parse(changes), job.draft()
    mode = _mode(mode, cluster, asked)
    gpu = recorded_gpu(job)
    retarget.apply(draft, asked, partial(_scaling, gpu), beside_communication(gpu))
    fabric, before = _fabrics(job, draft.world, cluster, mode, asked.links)
    _on_gpu(job, draft, gpu, fabric)
    replay, nccl = graph_of(job, draft), nccl_settings(job, asked.nccl)
    if mode == "recorded":  # the cluster then says only on which GPU kernels run
        fabric = before = None
    played, unknown_sizes = timed(replay, fabric, before, nccl)
    outcome = _outcome(replay, execute(played, steps=1), mode, clock, fabric)
    notes = _notes(job, draft, unknown_sizes)
    return replace(outcome, changes=_changes(draft, asked), notes=notes)


def _outcome(
    replay: Replay, run: Run, mode: Mode, clock: str, fabric: Fabric | None
) -> Outcome:
    """What was executed, with its steps."""
    return Outcome(
        replay,
        run,
        mode,
        cluster=fabric.name if fabric is not None else "",
        steps=tuple(_step_times(replay, run)),
        clock=_clock(clock, replay, run),
        fabric=fabric,
    )


def _fabrics(
    job: Job, world: int, cluster: str, mode: Mode, links: dict[str, str]
) -> tuple[Fabric | None, Fabric | None]:
    """The cluster with changes of its links, and without; (None, None) where nothing is simulated on one."""
    if not cluster and (mode == "recorded" or world == 1):
        return None, None
    fabric = fabric_of(job, world, cluster, links)
    return fabric, fabric_of(job, world, cluster, {}) if links else fabric


def _check_steps(job: Job) -> None:
    if job.steps:
        return
    recorded = "; ".join(
        f"rank {work.rank}: {', '.join(name for name, _, _ in work.steps)}"
        for work in job.works
    )
    expected = "steps that all ranks recorded"
    raise InputError(Mistake("traces", "steps", recorded, expected))


def _mode(mode: Mode | None, cluster: str, asked: Changes) -> Mode:
    """Transfers as recorded, unless the cluster or its communication is another."""
    if mode == "recorded" and asked.communication:
        conflict = "recorded, with changes of the cluster or its communication"
        hint = "leave --comm out"
        raise InputError(Mistake("--comm", "", conflict, "simulated", hint))
    return mode or ("simulated" if cluster or asked.communication else "recorded")


def _changes(draft: Draft, asked: Changes) -> tuple[str, ...]:
    """What differs from the recorded run, in words."""
    settings = (*asked.links.items(), *asked.nccl.items())
    return (*draft.changes, *(f"{key} = {value}" for key, value in settings))


def _notes(job: Job, draft: Draft, unknown_sizes: int) -> dict[str, int]:
    notes = dict(job.notes + draft.notes)
    if unknown_sizes:
        notes["collectives of unknown size, played as recorded"] = unknown_sizes
    return notes


def _scaling(gpu: Gpu | None, size: float) -> float:
    """Seconds that a gradient takes to be scaled into its bucket."""
    if gpu is None:
        limits = "one that prestep has no limits for"
        raise InputError(Mistake("traces", "GPU", limits, "a known GPU"))
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
    return [
        step
        for index in range(len(replay.programs))
        for step in _steps_of_rank(replay, run, index)
    ]


def _steps_of_rank(replay: Replay, run: Run, index: int) -> Iterator[StepTime]:
    """Steps of a simulated rank; what is measured is nan where the rank was not recorded."""
    job, nodes = replay.job, replay.programs[index]
    rank = replay.graph.programs[index].rank
    work = next((work for work in job.works if work.rank == rank), None)
    measured = _measured_steps(work) if work else {}
    marks = _marks(nodes, run.start[index][0])
    ends = _simulated_ends(nodes, run.end[index][0])
    for k, (name, _, _) in enumerate((work or job.works[0]).steps):
        if name in job.steps:
            begin, end = marks[f"begin {name}"], marks[f"end {name}"]
            host, gpu = _step_on_clocks(ends, k, begin, end)
            recorded_host, recorded_gpu = measured.get(name, (nan, nan))
            yield StepTime(rank, name, recorded_host, host, recorded_gpu, gpu)


def _simulated_ends(nodes: Sequence[Node], end: np.ndarray) -> dict[int, float]:
    """Ends of GPU work by step, as `_gpu_ends` has them."""
    return _gpu_ends([node.op for node in nodes], end.tolist())


def _measured_steps(work: Work) -> dict[str, tuple[float, float]]:
    """Seconds of a recorded rank's steps by name, on both clocks."""
    ends = _gpu_ends(work.ops, [op.finish for op in work.ops])
    return {
        name: _step_on_clocks(ends, k, begin, end)
        for k, (name, begin, end) in enumerate(work.steps)
    }


def _marks(nodes: Sequence[Node], start: np.ndarray) -> dict[str, float]:
    """When a simulated rank came to each of its marks ("begin ProfilerStep#2"), in seconds."""
    return {n.op.name: float(start[i]) for i, n in enumerate(nodes) if n.kind == MARK}


def _step_on_clocks(
    ends: Mapping[int, float], step: int, begin: float, end: float
) -> tuple[float, float]:
    """Seconds of a step on (its host's clock, its GPU's), from ends of GPU work as `_gpu_ends` has them.

    The GPU's clock counts from the end of the work before the step, the first step's from its begin.
    """
    before = max(ends[step - 1], begin if step == 0 else 0.0)
    return end - begin, ends[step] - before


def _gpu_ends(ops: Sequence[Op], ends: Sequence[float]) -> dict[int, float]:
    """Step -> end of the last GPU work issued in it or before; -1: before the first step."""
    latest = {-1: 0.0} | dict.fromkeys((op.step for op in ops), 0.0)
    for op, end in zip(ops, ends, strict=True):
        if op.kind == GPU:
            latest[op.step] = max(latest[op.step], end)
    reached = 0.0
    for step in sorted(latest):
        reached = latest[step] = max(latest[step], reached)
    return latest


def _clock(asked: str, replay: Replay, run: Run) -> str:
    """The clock of the steps: the GPU's if on any rank it ends steps far behind its host.

    One step alone has no end before it to count from; then it is the host's.
    """
    if asked != "auto":
        return asked
    for nodes, start, end in zip(replay.programs, run.start, run.end, strict=True):
        if _has_earlier_work(nodes) and _falls_behind(nodes, start[0], end[0]):
            return "gpu"
    return "host"


def _has_earlier_work(nodes: Sequence[Node]) -> bool:
    """Whether a step has GPU work before it."""
    steps = {node.op.step for node in nodes if node.op.kind == MARK}
    return len(steps) > 1 or any(
        node.op.step < 0 for node in nodes if node.op.kind == GPU
    )


def _falls_behind(nodes: Sequence[Node], start: np.ndarray, end: np.ndarray) -> bool:
    """Whether the GPU ends a step far behind its host, as recorded or as simulated."""
    ops = [node.op for node in nodes]
    measured = _gpu_ends(ops, [op.finish for op in ops])
    simulated = _simulated_ends(nodes, end)
    begins = {op.name: op.start for op in ops if op.kind == MARK}
    for i, op in enumerate(ops):
        mark, _, name = op.name.partition(" ")
        if op.kind != MARK or mark != "end":
            continue
        behind = measured[op.step] - op.start, simulated[op.step] - float(start[i])
        if max(behind) > BEHIND * (op.start - begins[f"begin {name}"]):
            return True
    return False


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
