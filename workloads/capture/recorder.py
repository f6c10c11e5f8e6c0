"""Captures a program for the GPU of a cluster and writes the recording: what the command and validation share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.costs.gpu_files import capability_of, facts_of
from prestep.sim.extras import MissingPackage
from prestep.topologies import load_cluster
from prestep.workloads.capture import recording
from prestep.workloads.capture.program import Device, Job, capture


def captured(
    command: tuple[str, ...],
    output: Path,
    *,
    world: int = 1,
    gpus_per_host: int = 8,
    gpu: str | None = None,
    cluster: str | None = None,
    step: int = 3,
    ranks: tuple[int, ...] = (),
    stop: bool = False,
    quiet: bool = False,
    busiest: float = 1.0,
    mark: str = "",
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs a program as `world` ranks would, one after the other, and writes its recording.

    Parameters
    ----------
    command
        The script and its arguments.
    gpu
        The GPU that the program is told it has; default: that of the cluster, or an H200.
    ranks
        Ranks that are run beside those that are found to differ.
    stop
        The program ends with the recorded step.
    quiet
        The program's own prints are not shown.
    busiest
        Tokens of the first expert over those of the mean one; nobody computes what routers choose by.
    mark
        Name of the ranges that steps begin with ("iteration*"); default: steps end with updates of weights.

    Returns
    -------
    dict
        The tables of the recording.

    Raises
    ------
    InputError
        If there is no such GPU or cluster, or the program fails; one that fails after its step has its recording.
    MissingPackage
        If PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPackage("torch")
    if gpu is None:
        gpu = load_cluster(cluster).gpu_model if cluster is not None else "h200"
    told = device(gpu)
    job = Job(
        command, world, gpus_per_host, told, step, quiet, ranks, stop, busiest, mark
    )
    made = capture(job, tell)
    with files.replacing(output) as beside:
        recording.write(beside, made.tables)
    if made.failure is not None:
        tell(f"step {step} was recorded before the program failed: {output} has it")
        raise made.failure
    return made.tables


def device(gpu: str) -> Device:
    """What the program is told of a GPU."""
    facts = facts_of(gpu)
    memory, l2 = int(facts.room), int(facts.l2)
    return Device(gpu, capability_of(gpu), facts.sms, memory, l2)
