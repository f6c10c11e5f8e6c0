"""Whether a step fits: bytes of every simulated rank at its peak, by owner, against what a GPU has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.result import Memory
from workloads.parallel.ddp import first_buckets_held

if TYPE_CHECKING:
    from sim.sections import Scenario
    from topologies.fabric import Fabric
    from workloads.lower import Lowered


def peaks(lowered: Lowered, scenario: Scenario, step: float = 0.0) -> dict[int, Memory]:
    """Bytes by owner at the peak of each simulated rank; `step`: seconds of a step, if known."""
    found = {}
    for rank, memory in lowered.memory.items():
        held = memory.first_buckets if step and first_buckets_held(scenario.training.warmup, step) else 0.0
        found[rank] = Memory(**(memory.at_peak | {"buffers": memory.at_peak["buffers"] + held}))
    return found


def fullest(lowered: Lowered, scenario: Scenario, fabric: Fabric, step: float = 0.0) -> Memory:
    """The rank with the highest peak; the lowest of equals."""
    found = peaks(lowered, scenario, step)
    return found[min(found, key=lambda rank: (-found[rank].total, rank))]
