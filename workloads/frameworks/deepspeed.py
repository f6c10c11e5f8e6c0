"""DeepSpeed around Megatron's layers (Megatron-DeepSpeed): its engine calls them and reduces gradients, ZeRO 0 to 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.extras import lazily
from prestep.workloads.frameworks import megatron
from prestep.workloads.job import JobSpec

with lazily():
    from prestep.workloads.megatron import engine, lower

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What is Megatron's, and not DeepSpeed's, where each rank has a part of the parameters."""
    yield from megatron.FRAMEWORK.caveats(s, model)
    if s.parallel.data_parallel == "zero3":
        yield (
            "ZeRO-3 around Megatron's layers counts as full sharding, without the Python of DeepSpeed's hooks: "
            'framework = "deepspeed-eager" has them, around plain modules'
        )


FRAMEWORK = replace(
    megatron.FRAMEWORK,
    lower=lambda s, m, site: lower.lower(s, m, site, engine=engine.DEEPSPEED),
    caveats=caveats,
)
