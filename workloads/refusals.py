"""Values that are understood but not simulated by a scenario's framework: refused, not ignored."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads import optimizer, precision
from prestep.workloads.frameworks import Framework, framework_of
from prestep.workloads.job import JobSpec

GATHERED = ("fsdp", "zero2", "zero3")
REPLICATED = ("none", "ddp", "ddp-no-overlap")


def refusals(scenario: JobSpec) -> Iterator[Mistake]:
    """What the framework could run but nobody has modelled."""
    framework = framework_of(scenario)
    training, parallel = scenario.training, scenario.parallel
    way = parallel.data_parallel or "none"
    for key, value, simulated in (
        ("training.precision", training.precision, precisions_of(framework)),
        ("training.recompute", training.recompute, framework.recompute),
        ("training.optimizer", training.optimizer, optimizers_of(framework)),
        ("parallel.data_parallel", way, framework.data_parallel),
    ):
        if value not in simulated:
            hint, found = "not simulated yet", f'"{value}"'
            yield scenario.mistake(key, " or ".join(simulated), hint, found)
    if not framework.context_parallel:
        yield from scenario.refused(["parallel.cp"], "1", "not simulated yet")
    if optimizer.optimizer(training.optimizer).iterations:
        yield from _whole_matrices(scenario, framework)
    yield from framework.refusals(scenario)


def _whole_matrices(scenario: JobSpec, framework: Framework) -> Iterator[Mistake]:
    """Newton-Schulz products need a matrix, or a tensor-parallel part of it, on one rank: PyTorch gathers it."""
    key, way = "training.optimizer", scenario.parallel.data_parallel or "none"
    gathered = way in GATHERED and scenario.pytorch.fsdp == "2"
    if way not in REPLICATED and not (framework.gathers_matrices and gathered):
        hint = f'parallel.data_parallel = "{way}" leaves each rank a part of a matrix'
        expected = f"an elementwise optimizer, or {' or '.join(REPLICATED)}"
        yield scenario.mistake(key, expected, hint)
    parts = framework.blockwise or framework.gathers_matrices
    if scenario.parallel.tp > 1 and not parts:
        hint = "parallel.tp leaves each rank a part of a matrix"
        yield scenario.mistake(key, "an elementwise optimizer", hint)


def precisions_of(framework: Framework) -> tuple[str, ...]:
    """Number formats whose needs a framework meets."""
    rows = map(precision.precision, precision.names())
    return tuple(
        row.name for row in rows if set(row.needs) <= set(framework.precisions)
    )


def optimizers_of(framework: Framework) -> tuple[str, ...]:
    """Optimizers whose updates a framework records."""
    rows = map(optimizer.optimizer, optimizer.names())
    return tuple(row.name for row in rows if row.update in framework.updates)
