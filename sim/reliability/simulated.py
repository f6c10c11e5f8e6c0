"""Progress of a scenario's job that goes on with fewer data-parallel replicas, from the step simulator."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from prestep.sim.errors import InputError
from prestep.sim.predict import step_time
from prestep.sim.reliability.degraded import largest_loss, progress_by_hosts
from prestep.sim.spec.sections import Measured, Scenario


def simulated_speeds(
    scenario: Scenario, step: float, per_host: int
) -> tuple[float, ...]:
    """Progress with 0, 1, 2, ... hosts missing, from the step simulator; `step` is that of the whole job (s).

    Raises
    ------
    InputError
        If there is no replica to lose, or ranks have places of their own.
    """
    p = scenario.parallel
    if p.dp < 2 or p.ep > 1:
        found = (
            "one data-parallel replica" if p.dp < 2 else f"experts over {p.ep} replicas"
        )
        raise InputError.of(
            scenario.where, "faults.degraded", found, "two whole replicas or more"
        )
    if (
        scenario.placement.gpus
        or scenario.placement.hosts
        or scenario.placement.hostfile
    ):
        raise InputError.of(
            scenario.where, "faults.degraded", "a placement by name", "ranks in order"
        )
    most = largest_loss(p.dp)
    points = sorted({1, most, round(math.sqrt(most))})
    ratios = [step / step_time(fewer(scenario, lost)) for lost in points]
    return progress_by_hosts(
        p.dp,
        per_host,
        p.tp * p.pp * p.cp,
        np.interp(np.arange(1, most + 1), points, ratios),
    )


def fewer(scenario: Scenario, lost: int) -> Scenario:
    """The same job with `lost` data-parallel replicas fewer, on as many GPUs fewer."""
    p, t = scenario.parallel, scenario.training
    dp = p.dp - lost
    if t.global_batch is not None:
        t = replace(t, global_batch=t.global_batch // p.dp * dp)
    return replace(
        scenario,
        parallel=replace(p, dp=dp, data_parallel=p.data_parallel if dp > 1 else None),
        training=t,
        cluster=replace(scenario.cluster, gpus=dp * p.tp * p.pp * p.cp),
        measured=Measured(),
        extensions={},
    )
