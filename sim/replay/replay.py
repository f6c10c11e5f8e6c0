"""Replays recorded runs: traces -> operation graph -> the ordinary engine -> steps beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim.costs import Gpu
from prestep.sim.costs.measured import gpu_of
from prestep.sim.engine.engine import Run, execute
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.replay import machine
from prestep.sim.replay.outcome import Mode, Outcome, of_steps
from prestep.sim.replay.steps import clock_of, step_times
from prestep.topologies.fabric import Fabric
from prestep.workloads import traces
from prestep.workloads.traces import retarget
from prestep.workloads.traces.changes import Changes, is_one, parse, scale
from prestep.workloads.traces.draft import Draft
from prestep.workloads.traces.files import uncollected
from prestep.workloads.traces.replay import Job, Replay, assemble, graph_of
from prestep.workloads.traces.work import GPU

# A link this many times faster is free; its latency stays.
FREE = "1000000x"


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
    _change_operations(job, draft, asked, mode)
    fabric, before = _fabrics(job, draft.world, cluster, mode, asked.cluster)
    _on_gpu(job, draft, machine.recorded_gpu(job), fabric)
    replay, nccl = graph_of(job, draft), machine.nccl_settings(job, asked.nccl)
    if mode == "recorded":  # the cluster then says only on which GPU kernels run
        fabric = before = None
    played, unknown_sizes = machine.timed(replay, fabric, before, nccl)
    outcome = _outcome(replay, execute(played, steps=1), mode, clock, fabric)
    notes = _notes(job, draft, unknown_sizes)
    return replace(outcome, changes=_changes(draft, asked), notes=notes)


def _change_operations(job: Job, draft: Draft, asked: Changes, mode: Mode) -> None:
    """Makes the changes that need no cluster."""
    gpu, planned = machine.recorded_gpu(job), mode == "simulated"
    scaling, beside = partial(_scaling, gpu), machine.beside_communication(gpu)
    retarget.apply(draft, asked, scaling, beside, planned)


def _outcome(
    replay: Replay, run: Run, mode: Mode, clock: str, fabric: Fabric | None
) -> Outcome:
    """What was executed, with its steps."""
    return Outcome(
        replay,
        run,
        mode,
        cluster=fabric.name if fabric is not None else "",
        steps=tuple(step_times(replay, run)),
        clock=clock_of(clock, replay, run),
        fabric=fabric,
    )


def _fabrics(
    job: Job, world: int, cluster: str, mode: Mode, changes: dict[str, str]
) -> tuple[Fabric | None, Fabric | None]:
    """The cluster with its changes, and without; (None, None) where nothing asks for one."""
    if not cluster and not changes and (mode == "recorded" or world == 1):
        return None, None
    fabric = machine.fabric_of(job, world, cluster, changes)
    return fabric, machine.fabric_of(job, world, cluster, {}) if changes else fabric


def _check_steps(job: Job) -> None:
    if job.steps:
        return
    recorded = "; ".join(
        f"rank {work.rank}: {', '.join(name for name, _, _ in work.steps)}"
        for work in job.works
    )
    expected = "steps that all ranks recorded"
    raise InputError.of("traces", "steps", recorded, expected)


def _mode(mode: Mode | None, cluster: str, asked: Changes) -> Mode:
    """Transfers as recorded, unless the cluster or its communication is another."""
    if mode == "recorded" and asked.communication:
        conflict = "recorded, with changes of the cluster or its communication"
        hint = "leave --comm out"
        raise InputError.of("--comm", "", conflict, "simulated", hint)
    return mode or ("simulated" if cluster or asked.communication else "recorded")


def _changes(draft: Draft, asked: Changes) -> tuple[str, ...]:
    """What differs from the recorded run, in words."""
    return (
        *draft.changes,
        *(f"{key} = {_as_asked(value)}" for key, value in asked.cluster.items()),
        *(f"{key} = {value}" for key, value in asked.nccl.items()),
    )


def _as_asked(value: str) -> str:
    """The value of a change of the cluster, in words."""
    return f"{value} (as it was)" if is_one(value) else value


def _notes(job: Job, draft: Draft, unknown_sizes: int) -> dict[str, int]:
    notes = dict(job.notes + draft.notes)
    if unknown_sizes:
        notes["collectives of unknown size, played as recorded"] = unknown_sizes
    return notes


def _scaling(gpu: Gpu | None, size: float) -> float:
    """Seconds that a gradient takes to be scaled into its bucket."""
    if gpu is None:
        limits = "one that prestep has no limits for"
        raise InputError.of("traces", "GPU", limits, "a known GPU")
    return gpu.duration(Kernel("aten div", (max(1, int(size / 2)),), bytes=2.0 * size))


def _on_gpu(job: Job, draft: Draft, gpu: Gpu | None, fabric: Fabric | None) -> None:
    """Kernels as they run on the cluster's GPU, and on one that has come to work with others."""
    if fabric is None:
        return
    target = gpu_of(fabric)
    if gpu is None:
        draft.notes["kernels as recorded: the recorded GPU is not known"] += 1
    elif target.name != gpu.name:
        retarget.rescaled(draft, machine.other_gpu(gpu, target, draft), target.name)
    machine.change_gpus(draft, fabric, target)
    if job.world == 1 and draft.world > 1:
        scale(draft, machine.together(target, draft.world))


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
    return sorted(
        {str(links.kind[i]) for i in np.flatnonzero(outcome.run.bytes.carried > 0)}
    )
