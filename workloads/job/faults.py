"""The section [faults] of a scenario: slow ranks, and noise from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.sim.strict import key

noise = partial(key, low=0, wants="faults.jitter > 0")


@dataclass(frozen=True)
class Faults:
    """What is wrong with the machine, or goes wrong; degraded links are changes in [cluster] set."""

    slow_rank: int | None = key(None, "rank that is slower than the others", low=0)
    slow_per_layer: float = key(
        0.0, "the slow rank's extra time per block, forward", unit="duration"
    )
    slow_factor: float = key(1.0, "on the slow rank's kernels", above=0)
    jitter: float = key(1.0, "run --replicas: factor on what follows; 0: none", low=0)
    jitter_kernel: float | None = noise(None, "relative deviation of each kernel")
    jitter_gpu: float | None = noise(None, "of a rank's kernels, by step")
    jitter_step: float | None = noise(None, "of all kernels, by step")
    jitter_launch: float | None = noise(None, "of each launch")
    jitter_host: float | None = noise(None, "of a rank's launches, by step")
    jitter_latency: float | None = noise(None, "of a transfer's latency")
    jitter_link: float | None = noise(None, "of the time of a transfer's bytes")
    jitter_pause: float | None = noise(
        None, "pauses of 5 ms or more, per GPU and second"
    )
