"""How slow the host of a measured machine was: the steps of its other programs say it.

Hosts differ from start to start of one kind of machine, and nobody can tell without having measured something there.
The rows of one file come from one start. A step that finds an empty queue, as the first after a synchronisation does,
takes its Python as long as the host needs, unless the program waits for the GPU or the queue fills up; what else
happens in a step, as compiling, allocating and tuning in first ones, only adds to that. So the least of all steps
counts, or the median of the later half where the host takes longer than the GPU in every step: a host's speed varies,
and its usual one is asked for. No row is its own witness.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from prestep.sim.predict import step_time
from prestep.sim.spec.load import load_scenario
from prestep.validation.fit.machine_steps import NONE, SLOWER
from prestep.validation.formats.rows import Row
from prestep.workloads.capture import recording
from prestep.workloads.operators.rules import kernels_of

SLOW = 20.0  # a host factor at which the host alone bounds a step, as at SLOWER
QUEUE = 1024  # launches that wait at most before the host does
BOUND = 0.9  # share of the GPU's time from which on neither is sure to be waited for
WITNESSES = 3  # fewer other programs say too little
WAITS = ("read", "host_waits_event", "host_waits_stream", "host_waits_all", "barrier")


def factor_of(row: Row, capture: Path, cluster: str) -> float | None:
    """The host factor that the steps of a row say; None where none says one."""
    measured = row.cpu_steps.get(0, ())
    if not measured or _waits(capture):
        return None
    host, gpu = host_and_gpu(capture, cluster)
    least = min(measured)
    if BOUND * least > gpu:
        return median(measured[len(measured) // 2 :]) / host
    if _launches(capture) > QUEUE and least < BOUND * gpu:
        return None
    return least / host


def of_others(factors: Sequence[float | None]) -> list[float | None]:
    """For each row the median of the others' factors; None where too few have one."""
    return [_median([*factors[:at], *factors[at + 1 :]]) for at in range(len(factors))]


def _median(factors: Sequence[float | None]) -> float | None:
    said = [factor for factor in factors if factor is not None]
    return median(said) if len(said) >= WITNESSES else None


def host_and_gpu(capture: Path, cluster: str) -> tuple[float, float]:
    """Seconds of the host at factor 1, and of a step that no host bounds."""

    def step(factor: float) -> float:
        overrides = [f"cluster.name={cluster}", f"cluster.host_factor={factor}"]
        return step_time(load_scenario(capture, overrides))

    return (step(SLOWER) - step(SLOW)) / (SLOWER - SLOW), step(NONE)


def _waits(capture: Path) -> bool:
    """Whether the host waits for the GPU within the step."""
    first = recording.read(capture).ranks[0]
    return any(event.kind in WAITS for event in first.events)


def _launches(capture: Path) -> int:
    recorded = recording.read(capture)
    launches = [len(kernels_of(operation)) for operation in recorded.operations]
    return sum(
        launches[event.values["operation"]]
        for event in recorded.ranks[0].events
        if event.kind.startswith("operate")
    )
