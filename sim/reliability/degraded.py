"""A job that goes on with fewer data-parallel replicas: its progress by hosts that are missing.

Hosts that are left are formed into replicas anew at every restart, so h missing hosts cost as many replicas as they
hold, rounded up. The step of the smaller job is simulated where there is a scenario
(`prestep.sim.reliability.scenario`): of one replica less, of the most, and of one number in between; the rest lies on
the line between its neighbours. The batch shrinks with the replicas: each sees as many samples.
"""

from __future__ import annotations

import math

import numpy as np

from prestep.sim.errors import InputError

LARGEST_SHARE = 0.25  # of the replicas: a job that lost more waits
MOST = 4096  # hosts in the table


def replicas_lost(hosts: int, per_host: int, per_replica: int) -> int:
    """Replicas that so many missing hosts cost; GPUs of a host, and of a replica."""
    return math.ceil(hosts * per_host / per_replica)


def plain_speeds(gpus: int, per_host: int, per_replica: int) -> tuple[float, ...]:
    """Progress with 0, 1, 2, ... hosts missing: that of the replicas that are left.

    Raises
    ------
    InputError
        If the job does not divide into replicas, or has only one.
    """
    replicas, rest = divmod(gpus, per_replica)
    if rest or replicas < 2:
        found = f"{gpus} GPUs in replicas of {per_replica}"
        expected = "two replicas or more, without a rest"
        raise InputError.of("command line", "--replica-gpus", found, expected)
    same_step = np.ones(largest_loss(replicas))
    return progress_by_hosts(replicas, per_host, per_replica, same_step)


def largest_loss(replicas: int) -> int:
    """Replicas that a job can lose and go on."""
    return max(1, int(replicas * LARGEST_SHARE))


def progress_by_hosts(
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
