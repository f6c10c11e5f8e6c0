"""Changes with which a step that does not fit would: few, and each as small as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim.errors import InputError
from sim.spec.sections import Scenario
from sim.studies.largest import fits, largest_micro_batch

Load = Callable[[tuple[str, ...]], Scenario]

# Each stronger than the one before it.
RECOMPUTE = ("selective", "alternate", "full")
SHARDED = ("zero1", "fsdp")


def remedies(scenario: Scenario, load: Load) -> tuple[str, ...]:
    """Changes of one key that make a step fit, as `--set` takes them; of two keys where no single one does.

    ``load`` gives the scenario with changes, or raises `InputError` where they do not go with the rest of it.
    """
    single = tuple(_single(scenario, load))
    return single or tuple(_double(scenario, load))


def _single(scenario: Scenario, load: Load) -> Iterator[str]:
    """The weakest change of each kind that is enough."""
    for values, key in (
        (_after(scenario.training.recompute, RECOMPUTE), "training.recompute"),
        (_sharded(scenario), "parallel.data_parallel"),
        (_reduced(scenario), "pytorch.reduce_every_microbatch"),
    ):
        changes = (f"{key}={value}" for value in values)
        enough = (change for change in changes if _fits(load, (change,)))
        yield from list(enough)[:1]
    if samples := _micro_batch(scenario):
        yield f"training.micro_batch={samples}"


def _double(scenario: Scenario, load: Load) -> Iterator[str]:
    """Full recomputation, and the largest micro batch that fits beside it; or sharded parameters."""
    full = "training.recompute=full"
    try:
        recomputed = load((full,))
    except InputError:
        return
    if samples := _micro_batch(recomputed):
        yield f"{full} and training.micro_batch={samples}"
        return
    for value in _sharded(scenario):
        change = f"parallel.data_parallel={value}"
        if _fits(load, (full, change)):
            yield f"{full} and {change}"
            return


def _after(value: str, stronger: tuple[str, ...]) -> tuple[str, ...]:
    """The values that are stronger than one."""
    return stronger[stronger.index(value) + 1 :] if value in stronger else stronger


def _sharded(scenario: Scenario) -> tuple[str, ...]:
    """Ways of data parallelism that hold less on each rank."""
    if scenario.parallel.dp == 1:
        return ()
    return _after(scenario.parallel.data_parallel or "none", SHARDED)


def _reduced(scenario: Scenario) -> tuple[str, ...]:
    """Under FSDP, gradients that are reduced before the last microbatch."""
    sharded = scenario.parallel.data_parallel == "fsdp"
    return ("true",) if sharded and not scenario.pytorch.reduce_every_microbatch else ()


def _fits(load: Load, changes: tuple[str, ...]) -> bool:
    try:
        return fits(load(changes))
    except InputError:
        return False


def _micro_batch(scenario: Scenario) -> int:
    """The largest micro batch that fits and that the global batch allows; 0 for none."""
    limit = largest_micro_batch(scenario)
    return limit.micro_batch if limit.divides is None else limit.divides
