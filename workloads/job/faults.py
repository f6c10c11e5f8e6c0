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
        0.0,
        "extra time of the slow rank in every block's forward pass",
        unit="duration",
    )
    slow_factor: float = key(1.0, "factor on every kernel of the slow rank", above=0)
    jitter: float = key(
        1.0, "run --replicas: factor on all that follow; 0: no noise", low=0
    )
    jitter_kernel: float | None = noise(
        None, "relative standard deviation of every kernel by itself"
    )
    jitter_gpu: float | None = noise(
        None, "of all kernels of a rank together, from step to step"
    )
    jitter_step: float | None = noise(
        None, "of all kernels of all ranks together, from step to step"
    )
    jitter_launch: float | None = noise(None, "of every launch of a host by itself")
    jitter_host: float | None = noise(
        None, "of all launches of a rank together, from step to step"
    )
    jitter_latency: float | None = noise(
        None, "of what a transfer waits before its bytes"
    )
    jitter_link: float | None = noise(None, "of the time of a transfer's bytes")
    jitter_pause: float | None = noise(
        None,
        "how often a GPU or its host stands still for 5 ms or longer, per GPU and second",
    )
