"""DeepSpeed around Megatron's layers (Megatron-DeepSpeed): its engine calls them and reduces gradients, ZeRO 0 to 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.workloads.frameworks import megatron
from prestep.workloads.job import JobSpec

if TYPE_CHECKING:
    from prestep.workloads.lowered import Lowered, Site
    from prestep.workloads.models.model import ModelSpec


def lower(scenario: JobSpec, model: ModelSpec, site: Site) -> Lowered:
    """As Megatron's, under DeepSpeed's engine."""
    from prestep.workloads.megatron import (  # they are what takes long to import
        engine,
        lower,
    )

    return lower.lower(scenario, model, site, engine=engine.DEEPSPEED)


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What is Megatron's, and not DeepSpeed's, where each rank has a part of the parameters."""
    yield from megatron.FRAMEWORK.caveats(s, model)
    if s.parallel.data_parallel == "zero3":
        yield (
            "ZeRO-3 around Megatron's layers counts as full sharding, without the Python of DeepSpeed's hooks: "
            'framework = "deepspeed-eager" has them, around plain modules'
        )


FRAMEWORK = replace(megatron.FRAMEWORK, lower=lower, caveats=caveats)
