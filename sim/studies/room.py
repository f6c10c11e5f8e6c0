"""Changes with which a step that does not fit would: few, and each as small as it can be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from prestep.sim.analysis.memory import Recomputed, peaks
from prestep.sim.errors import InputError
from prestep.sim.lowering import lowered_on
from prestep.sim.planning.planned import Planned
from prestep.sim.spec.lookup import layout_mistakes
from prestep.sim.spec.sections import Scenario
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.job.megatron import RecomputedModule
from prestep.workloads.models.model import ModelSpec

# Each stronger than the one before it.
RECOMPUTE = ("selective", "alternate", "full")
SHARDED = ("zero1", "fsdp")
# Of more GPUs one change is looked for, not one of each kind: each takes as long as planning.
MOST_GPUS = 1_024

FEW = 3  # microbatches without a pipeline; with one, as many as it holds at once

#: Values of keys, by dotted key.
Change = dict[str, Any]


Outside = Mapping[int, Mapping[str, float]]


def remedies(scenario: Scenario, planned: Planned, outside: Outside) -> list[str]:
    """Changes of one key that make a step fit, as `--set` takes them; of two keys where no single one does.

    ``outside``: bytes beside the allocator's by rank and owner, which these changes hardly move.
    """
    room = _Room(scenario, planned, outside)
    large = planned.lowered.layout.world > MOST_GPUS
    single = chain(_first_that_fits(room, {}), _smaller_batch(room, {}))
    enough = list(islice(single, 1 if large else None))
    if not enough:
        full = {"training.recompute": "full"}
        pairs = chain(_smaller_batch(room, full), _first_that_fits(room, full))
        enough = list(islice(pairs, 1))
    return [" and ".join(map(_text, change.items())) for change in enough]


def recomputed(s: Scenario, planned: Planned, outside: Outside) -> Recomputed | None:
    """What a step that recomputes nothing would need if it did, in every way up to the weakest that fits.

    None: it recomputes already, or nothing of it can be.
    """
    if s.training.recompute != "none" or s.megatron.recompute_modules:
        return None
    room, needed = _Room(s, planned, outside), dict[str, float]()
    for way in RECOMPUTE:
        need = room.needed({"training.recompute": way})
        if need is None:
            continue
        needed[way] = need
        if need <= planned.gpu.memory:
            break
    if not needed:
        return None
    least = min(needed, key=needed.__getitem__)
    fits = needed[least] <= planned.gpu.memory
    return Recomputed(least, needed[least], fits, needed)


def _light(s: Scenario, model: ModelSpec) -> tuple[RecomputedModule, ...]:
    """Parts of Megatron's layers whose outputs take little to make again: norms, activations, expanded latents."""
    if s.training.framework != "megatron" or s.megatron.recompute_modules:
        return ()
    parts: dict[RecomputedModule, object] = {
        "layernorm": True,
        "mla_up_proj": model.latent,
        "moe_act": model.experts,
    }
    return tuple(part for part, there in parts.items() if there)


def _text(item: tuple[str, Any]) -> str:
    key, value = item
    text = json.dumps(value) if isinstance(value, tuple) else str(value).lower()
    return f"{key}={text}"


@dataclass(frozen=True)
class _Room:
    """The memory of a planned step's layout, and of others like it on the same GPUs."""

    scenario: Scenario
    planned: Planned
    outside: Outside

    def fits(self, change: Change) -> bool:
        """Whether every simulated rank has room for what it allocates; False for what cannot be run."""
        need = self.needed(change)
        return need is not None and need <= self.planned.gpu.memory

    def needed(self, change: Change) -> float | None:
        """Bytes that the fullest simulated rank needs; None for what cannot be run."""
        scenario = _changed(self.scenario, change)
        gpus = len(self.planned.gpus)
        if layout_mistakes(scenario, gpus, self.planned.model):
            return None
        try:
            machine = self.planned.machine
            few = few_microbatches(scenario)
            lowered = lowered_on(few, machine.fabric, machine)
        except InputError:
            return None
        needs = peaks(lowered)
        return max(
            need.total + sum(self.outside.get(rank, {}).values())
            for rank, need in needs.items()
        )


def _changed(scenario: Scenario, change: Change) -> Scenario:
    """The scenario with other values of keys."""
    for key, value in change.items():
        section, name = key.split(".")
        table = replace(getattr(scenario, section), **{name: value})
        scenario = replace(scenario, **{section: table})
    return scenario


def _first_that_fits(room: _Room, given: Change) -> Iterator[Change]:
    """Of every key the weakest value that is enough beside what is given."""
    s = room.scenario
    every, light = s.pytorch.reduce_every_microbatch, _light(s, room.planned.model)
    stronger = {
        "megatron.recompute_modules": (light,) if light else (),
        "training.recompute": _after(s.training.recompute, RECOMPUTE),
        "parallel.data_parallel": _sharded(s),
        "pytorch.reduce_every_microbatch": () if every else (True,),
    }
    for key, values in stronger.items():
        changes = ({**given, key: value} for value in values if key not in given)
        enough = next(filter(room.fits, changes), None)
        if enough is not None:
            yield enough


def _smaller_batch(room: _Room, given: Change) -> Iterator[Change]:
    """The first half of the micro batch that is small enough; a step has as many samples as before."""
    samples = room.scenario.training.micro_batch // 2
    while samples:
        change = {**given, "training.micro_batch": samples}
        if room.fits(change):
            yield change
            return
        samples //= 2


def _after(value: str, stronger: tuple[str, ...]) -> tuple[str, ...]:
    """The values that are stronger than one."""
    return stronger[stronger.index(value) + 1 :] if value in stronger else stronger


def _sharded(scenario: Scenario) -> tuple[str, ...]:
    """Ways of data parallelism that hold less on each rank."""
    if scenario.parallel.dp == 1:
        return ()
    return _after(scenario.parallel.data_parallel or "none", SHARDED)


def enough_microbatches(scenario: Scenario, count: int) -> int:
    """Microbatches that tell the memory of all: accumulation holds no more than the third does."""
    return count if scenario.parallel.pp > 1 else min(count, FEW)


def few_microbatches(scenario: Scenario) -> Scenario:
    """A step that needs as much memory, with as few microbatches as that takes."""
    few = enough_microbatches(scenario, microbatches_of(scenario))
    return with_samples(scenario, scenario.training.micro_batch, few)


def with_samples(scenario: Scenario, samples: int, microbatches: int) -> Scenario:
    """The same layout with another micro batch and so many microbatches."""
    t = replace(
        scenario.training,
        micro_batch=samples,
        microbatches=None,
        grad_accumulation=None,
        global_batch=samples * scenario.parallel.dp * microbatches,
    )
    return replace(
        scenario, training=t, parallel=replace(scenario.parallel, microbatches=None)
    )
