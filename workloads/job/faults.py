"""The section [faults] of a scenario: slow ranks, noise from step to step, failures over weeks."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.strict import key, table


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
    jitter_kernel: float | None = key(
        None, "relative standard deviation of every kernel by itself", low=0
    )
    jitter_gpu: float | None = key(
        None, "of all kernels of a rank together, from step to step", low=0
    )
    jitter_step: float | None = key(
        None, "of all kernels of all ranks together, from step to step", low=0
    )
    jitter_launch: float | None = key(
        None, "of every launch of a host by itself", low=0
    )
    jitter_host: float | None = key(
        None, "of all launches of a rank together, from step to step", low=0
    )
    jitter_latency: float | None = key(
        None, "of what a transfer waits before its bytes", low=0
    )
    jitter_link: float | None = key(None, "of the time of a transfer's bytes", low=0)
    jitter_pause: float | None = key(
        None,
        "how often a GPU or its host stands still for 5 ms or longer, per GPU and second",
        low=0,
    )
    rates: dict[str, str] = table(  # noqa: RUF009
        "goodput: failures per million GPU-hours by component, such as { gpu = 9 }"
    )
    takes: dict[str, str] = table(  # noqa: RUF009
        "goodput: hosts that a failure of a component takes out, such as { rack = 8 }"
    )
    spares: int | None = key(None, "goodput: spare hosts; default 32", low=0)
    degraded: bool = key(
        False,
        "goodput: without spares the job goes on with fewer data-parallel replicas",
    )
    detect: float | None = key(
        None, "goodput: until a failure is noticed", unit="duration"
    )
    repair: float | None = key(
        None, "goodput: until a broken host is a spare again", unit="duration"
    )
