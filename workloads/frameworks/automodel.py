"""NeMo Automodel: Transformer Engine's layers under PyTorch's FSDP2, its pipelines and its optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import megatron, rule
from prestep.workloads.frameworks._megatron_optimizer import FSDP
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.models.model import ModelSpec

with lazily():
    from prestep.workloads.megatron import engine, lower


@rule("adapter.experts adapter.targets model.experts")
def _expert_adapters(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Adapters beside experts: one for each (GroupedExpertsLoRA), or none."""
    beside = bool({"fc1", "fc2"} & set(s.adapter.places))
    if model.experts and beside and s.adapter.experts == "shared":
        hint = "no adapter of Automodel's is shared by experts"
        yield s.mistake("adapter.experts", '"each" or "frozen"', hint)


def refusals(s: JobSpec) -> Iterator[Mistake]:
    """Backward passes in halves need parameters that stay."""
    p = s.parallel
    if p.pp > 1 and p.reshard_after_forward and splits_backward(s):
        hint = "a schedule that splits backward keeps gathered parameters"
        yield s.mistake("parallel.reshard_after_forward", "false", hint)


FRAMEWORK = replace(
    megatron.FRAMEWORK,
    lower=lambda s, m, site: lower.lower(s, m, site, engine=engine.PYTORCH),
    updates=("adam",),
    data_parallel=("none", *FSDP),
    family="automodel",
    rules=tuple(r for r in megatron.FRAMEWORK.rules if r != megatron._adapters),
    model_rules=(*megatron.FRAMEWORK.model_rules, _expert_adapters),
    refusals=refusals,
    tries={
        "parallel.data_parallel": ("fsdp",),
        "parallel.etp": (None, 1),
        "training.recompute": ("none", "selective", "full"),
    },
    few_microbatches=False,
    blockwise=False,
    layers_beside=lambda scenario: 0,
)
