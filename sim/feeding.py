"""The result of a step with its data: what the readers of [dataload] make it wait for (`workloads.dataload`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sim.opgraph import SYNC
from sim.storage_system import known
from workloads.dataload import Place, fed

if TYPE_CHECKING:
    from sim.predict import Simulation
    from sim.result import Result


def with_data(simulation: Simulation, result: Result) -> Result:
    """The result with `dataload`; where the step waits for its data, time and rates are those with the waiting.

    Raises
    ------
    InputError
        If [dataload] does not say how long a batch takes, or names storage that there is none of.
    """
    s = simulation.scenario
    table = fed(s.dataload, s, result.step_time, simulation.model, _place(simulation))
    wait, before = table["exposed"], result.step_time
    table["step_time_without"] = before
    if wait <= 0:
        return replace(result, dataload=table)
    slower = before / (before + wait)
    shares = dict(result.breakdown)
    shares["io"] = shares.get("io", 0.0) + wait
    return replace(
        result, dataload=table, step_time=before + wait, breakdown=shares,
        step_time_by_rank={rank: time + wait for rank, time in result.step_time_by_rank.items()},
        tokens_per_second_per_gpu=result.tokens_per_second_per_gpu * slower, mfu=result.mfu * slower,
        tflops_per_gpu=result.tflops_per_gpu * slower,
    )  # fmt: skip


def _place(simulation: Simulation) -> Place:
    from sim.saving import constants

    s, fabric, run = simulation.scenario, simulation.fabric, simulation.run
    gpus = simulation.gpus or fabric.gpus
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    rows, usage = fabric.spread(fabric.nearest(gpus[0], "memory"), gpus[0])
    pinned = float(np.min(fabric.links.bandwidth[rows] / usage)) if len(rows) else constants()["copy"]
    programs = simulation.lowered.graph.programs
    done = max(float(run.end[i][0][p.kind != SYNC].max(initial=0.0)) for i, p in enumerate(programs))
    launched = max(float(run.launch[i][0].max(initial=0.0)) for i in range(len(programs)))
    system = known(s.dataload.storage or "nvme", s.where, "dataload.storage") if s.dataload.sample is not None else None
    return Place(hosts.count(hosts[0]), min(constants()["copy"], pinned), pinned, launched, done, system)
