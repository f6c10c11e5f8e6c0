"""What the explorer's page lets its user change: for each key of `--set` the values that it offers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args, get_type_hints

from prestep.sim.errors import InputError
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.elements import EACH
from prestep.sim.tools.catalog import names
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.training import Training
from prestep.workloads.models.model import PROGRAM, ModelSpec

FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0)
MOST_GPUS = 1024
#: Links that a training step over NCCL does not use by default: their sliders would do nothing.
_IDLE = ("nvme", "storage", "server", "memory", "socket")
_TRANSFORMERS = (
    "parallel.tp",
    "parallel.pp",
    "parallel.schedule",
    "training.seq_len",
    "training.recompute",
)
_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Knob:
    """A control: `key` as `--set` takes it, the `values` in the order of the slider, and the scenario's own (`value`).

    `group` is the heading that it stands under; a `choice` has no order and becomes a list to select from.
    """

    key: str
    label: str
    group: str
    values: tuple[str, ...]
    value: str
    choice: bool = False


def knobs(scenario: Scenario, fabric: Fabric, model: ModelSpec) -> tuple[Knob, ...]:
    """The controls that mean something for this scenario, on its cluster.

    A recorded program has its layout, its batch and its ways; only the cluster is left to change.
    """
    if model.kind == PROGRAM:
        return tuple(_links(scenario, fabric))
    made = [
        *_links(scenario, fabric),
        *_layout(scenario, fabric),
        *_batch(scenario),
        *_ways(scenario),
    ]
    # Only transformers are split by layers and tensors, have sequences and are computed again.
    return tuple(
        knob
        for knob in made
        if model.kind == "transformer" or knob.key not in _TRANSFORMERS
    )


def grows(scenario: Scenario, fabric: Fabric) -> bool:
    """Whether the cluster's family scales with its hosts."""
    c = scenario.cluster
    if c.hostfile or c.gpus or scenario.placement.hostfile:
        return False
    try:
        load_cluster(c.file or c.name or "", hosts=2 * len(fabric.hosts))
    except InputError:
        return False
    return True


def world(p: Parallel) -> int:
    """GPUs of a layout."""
    return p.dp * p.tp * p.pp * p.cp


def _links(scenario: Scenario, fabric: Fabric) -> Iterator[Knob]:
    """Bandwidths of the kinds and tiers of links, and what a GPU does, as factors of the scenario's."""
    for group, words in (
        ("Link bandwidths", ("link-kind", "tier")),
        ("GPUs", ("gpu",)),
    ):
        for name, key in dict.fromkeys(
            pair for word in words for pair in EACH[word](fabric, fabric.gpus)
        ):
            made = tuple(
                scaled(scenario.cluster.set.get(key, "1x"), factor)
                for factor in FACTORS
            )
            if all(made) and name not in _IDLE:
                label = name.removeprefix("gpu ").replace("_", " ")
                yield Knob(key, label, group, made, made[FACTORS.index(1.0)])


def scaled(text: str, factor: float) -> str:
    """`400 Gbit/s` or `0.5x` times a factor, in the same unit; "" for what is no quantity."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return ""
    space = "" if found[2] == "x" else " "
    return f"{float(found[1]) * factor:g}{space}{found[2]}"


def _layout(scenario: Scenario, fabric: Fabric) -> Iterator[Knob]:
    """GPUs by axis; `gpus` is all of them together, from which the page makes dp."""
    p, model, own = scenario.parallel, scenario.model, world(scenario.parallel)
    most = max(MOST_GPUS, own) if grows(scenario, fabric) else len(fabric.gpus)
    axes = [
        ("tp", "tensor parallel"),
        ("pp", "pipeline parallel"),
        ("dp", "data parallel"),
    ]
    if p.cp > 1:
        axes.append(("cp", "context parallel"))
    if p.ep > 1 or model.experts:
        axes.append(("ep", "expert parallel"))
    yield Knob("gpus", "GPUs", "Layout", _numbers(own, most), str(own))
    for axis, told in axes:
        own = int(getattr(p, axis))
        limit = min(most, 64) if axis in ("tp", "pp", "cp") else most
        yield Knob(
            f"parallel.{axis}",
            f"{told} ({axis.upper()})",
            "Layout",
            _numbers(own, limit),
            str(own),
        )


def _batch(scenario: Scenario) -> Iterator[Knob]:
    t = scenario.training
    keys = [("micro_batch", "micro batch", 64)]
    keys += [
        (key, key.replace("_", " "), 16)
        for key in _COUNTED
        if getattr(t, key) is not None
    ]
    if len(keys) == 1:  # a step of one microbatch, of which there may be more
        keys.append(("grad_accumulation", "microbatches (gradient accumulation)", 16))
    keys.append(("seq_len", "sequence length", 8))
    for key, told, times in keys:
        own = int(getattr(t, key) or 1)
        low = own if key == "seq_len" else 1
        yield Knob(
            f"training.{key}",
            told,
            "Batch",
            _numbers(own, max(own * times, 16), max(1, low // 8)),
            str(own),
        )


_COUNTED = ("global_batch", "grad_accumulation", "microbatches")


def _ways(scenario: Scenario) -> Iterator[Knob]:
    """Choices without an order."""
    p, t = scenario.parallel, scenario.training
    sharding = _words(Parallel, "data_parallel")
    yield Knob(
        "parallel.data_parallel",
        "data parallelism",
        "Ways",
        sharding,
        p.data_parallel or "none",
        True,
    )
    yield Knob(
        "parallel.schedule",
        "pipeline schedule",
        "Ways",
        tuple(names("schedules")),
        p.schedule,
        True,
    )
    yield Knob(
        "training.recompute",
        "recomputation",
        "Ways",
        _words(Training, "recompute"),
        t.recompute,
        True,
    )


def _words(section: type, key: str) -> tuple[str, ...]:
    """The values of a Literal field, None left out."""
    hint = get_type_hints(section)[key]
    kinds = [hint, *get_args(hint)]
    return tuple(
        word for kind in kinds for word in get_args(kind) if isinstance(word, str)
    )


def _numbers(own: int, most: int, low: int = 1) -> tuple[str, ...]:
    """Powers of two times the odd part of the scenario's own value and of one, and the value itself."""
    odd = own
    while odd % 2 == 0:
        odd //= 2
    found = {own}
    for start in {1, odd}:
        while start <= most:
            if start >= low:
                found.add(start)
            start *= 2
    return tuple(map(str, sorted(found)))
