"""A job that goes on with fewer data-parallel replicas: its progress by hosts that are missing.

Hosts that are left are formed into replicas anew at every restart, so h missing hosts cost as many replicas as they
hold, rounded up. With a scenario the step of the smaller job is simulated: of one replica less, of the most, and of
one number in between; the rest lies on the line between its neighbours. The batch shrinks with the replicas: each
sees as many samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sim.errors import InputError, Mistake
from sim.spec.sections import Checkpoint, Measured

if TYPE_CHECKING:
    from sim.spec.sections import Scenario

LARGEST_SHARE = 0.25  # of the replicas: a job that lost more waits
MOST = 4096  # hosts in the table


def replicas_lost(hosts: int, per_host: int, per_replica: int) -> int:
    """Replicas that so many missing hosts cost; GPUs of a host, and of a replica."""
    return math.ceil(hosts * per_host / per_replica)


def plain_speeds(
    gpus: int, per_host: int, per_replica: int, where: str = "command line"
) -> tuple[float, ...]:
    """Progress with 0, 1, 2, ... hosts missing: that of the replicas that are left.

    Raises
    ------
    InputError
        If the job does not divide into replicas, or has only one.
    """
    replicas, rest = divmod(gpus, per_replica)
    if rest or replicas < 2:
        found = f"{gpus} GPUs in replicas of {per_replica}"
        raise InputError(
            Mistake(
                where, "--replica-gpus", found, "two replicas or more, without a rest"
            )
        )
    return _by_hosts(
        replicas, per_host, per_replica, np.arange(1, _most(replicas) + 1) * 0 + 1.0
    )


def _most(replicas: int) -> int:
    return max(1, int(replicas * LARGEST_SHARE))


def _by_hosts(
    replicas: int, per_host: int, per_replica: int, ratio: np.ndarray
) -> tuple[float, ...]:
    """`ratio[r - 1]`: the whole job's step time over that with r replicas fewer."""
    speeds = [1.0]
    for hosts in range(1, MOST):
        lost = replicas_lost(hosts, per_host, per_replica)
        if lost > len(ratio):
            break
        speeds.append(min(1.0, (replicas - lost) / replicas * float(ratio[lost - 1])))
    return tuple(speeds)


def simulated_speeds(
    scenario: Scenario, step: float, per_host: int
) -> tuple[float, ...]:
    """Progress with 0, 1, 2, ... hosts missing, from the step simulator; `step` is that of the whole job (s).

    Raises
    ------
    InputError
        If there is no replica to lose, or ranks have places of their own.
    """
    from sim.predict import step_time

    p = scenario.parallel
    if p.dp < 2 or p.ep > 1:
        found = (
            "one data-parallel replica" if p.dp < 2 else f"experts over {p.ep} replicas"
        )
        raise InputError(
            Mistake(
                scenario.where, "faults.degraded", found, "two whole replicas or more"
            )
        )
    if (
        scenario.placement.gpus
        or scenario.placement.hosts
        or scenario.placement.hostfile
    ):
        raise InputError(
            Mistake(
                scenario.where,
                "faults.degraded",
                "a placement by name",
                "ranks in order",
            )
        )
    most = _most(p.dp)
    points = sorted({1, most, round(math.sqrt(most))})
    ratios = [step / step_time(fewer(scenario, lost)) for lost in points]
    return _by_hosts(
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
        checkpoint=Checkpoint(),
    )
