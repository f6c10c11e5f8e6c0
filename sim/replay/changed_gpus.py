"""Recorded kernels on GPUs that `--set gpu.clock=0.5x` and the like made faster or slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prestep.sim.costs import Gpu
from prestep.sim.costs.changed import AS_MODEL, Speed, changed
from prestep.sim.errors import InputError, Mistake
from prestep.sim.planning.fleet import speeds_of
from prestep.sim.replay.machine import other_gpu
from prestep.topologies.fabric import Fabric
from prestep.workloads.traces.changes import scale
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.straggler import with_rank


def change_gpus(draft: Draft, fabric: Fabric, model: Gpu) -> None:
    """Kernels of each rank as its GPU runs them, after the cluster's changes of GPUs.

    Ranks that were not recorded do what the first recorded one does; one of every other speed is played by itself.

    Raises
    ------
    InputError
        If a GPU of another speed is that of a rank without a trace, in a run whose ranks differ.
    """
    own = speeds_of(fabric, model, fabric.gpus[: draft.world])
    # A run of fewer ranks than were recorded may keep a rank beyond them, which stands for all.
    speeds = {
        rank: own[rank % draft.world] for rank in (*range(draft.world), *draft.programs)
    }
    for rank in _unplayed(draft, speeds).values():
        with_rank(draft, rank, f"gpu of rank {rank}")
    other = [rank for rank in draft.programs if speeds[rank] != AS_MODEL]
    counts = [
        scale(draft, _factor(draft, model, speeds[rank]), only=[rank]) for rank in other
    ]
    if other and not any(counts):
        raise InputError(_untouched(draft))


def _untouched(draft: Draft) -> Mistake:
    """A change of GPUs that no recorded kernel follows: nobody knows what the kernels do, or they do none of it."""
    names = (node.op.name for nodes in draft.programs.values() for node in nodes)
    kernels = sorted({name for name in names if not name.startswith(("begin", "end"))})
    found = f"no kernel that follows it, among {', '.join(kernels[:3])}"
    hint = "such as one that prestep wrote of layers as a whole; `prestep run --set` changes the scenario"
    expected = "a trace of single kernels whose names say what they do"
    return Mistake("--set", "gpu", found, expected, hint)


def _unplayed(draft: Draft, speeds: Mapping[int, Speed]) -> dict[Speed, int]:
    """Speeds that no rank with a program has, and the first rank that has each."""
    played = {speeds[rank] for rank in draft.programs}
    first = {speed: rank for rank, speed in reversed([*speeds.items()])}
    return {speed: rank for speed, rank in first.items() if speed not in played}


def _factor(draft: Draft, model: Gpu, speed: Speed) -> Callable[[Node], float]:
    return other_gpu(model, changed(model, speed), draft)
