"""Ports shaped by token buckets: they carry bursts at once, and over time no more than their rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.collectives.plan import Plan


def bucket(fabric: Any) -> bool:
    """Whether the network's ports are shaped by token buckets."""
    return bool(fabric.cluster_facts.token_bucket)


def shaped(plan: Plan, fabric: Any) -> Plan:
    """The plan where the network's ports are shaped by token buckets: less of its latency remains.

    While a port waits for the next step its bucket fills, and the step's bytes then pass at once: over the whole
    collective it carries its rate without pauses, unless the pauses alone take longer.
    """
    if not bucket(fabric) or plan.size <= 0:
        return plan
    moving = plan.duration(fabric.links.bandwidth) - plan.latency
    return replace(plan, latency=max(0.0, plan.latency - moving))


def refill(plan: Plan, fabric: Any) -> float:
    """Seconds of a pause after which a port's bucket is full: until then nothing is lost."""
    if not bucket(fabric) or not len(plan.links):
        return 0.0
    slot = int(np.argmin(fabric.links.bandwidth[plan.links] / plan.usage))
    return float(
        fabric.cluster_facts.token_bucket / fabric.links.bandwidth[plan.links[slot]]
    )
