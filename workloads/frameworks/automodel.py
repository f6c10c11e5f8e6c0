"""NeMo Automodel: Transformer Engine's layers under PyTorch's FSDP2, its pipelines and its optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import megatron
from prestep.workloads.job import Job
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.models.shape import ModelShape

if TYPE_CHECKING:
    from prestep.workloads.lowered import Lowered, Site
    from prestep.workloads.models.model import ModelSpec

#: Keys of [pytorch] that count.
PYTORCH = (
    "version",
    "cuda",
    "reduce_dtype",
    "experts_reduce_dtype",
    "reduce_every_microbatch",
    "master_weights",
    "wide_moments",
    "fused_optimizer",
    "clip_gradients",
    "eager_operators",
    "attention_waits",
    "timed_rounds",
    "compiled_layers",
)
#: Keys of [megatron] that PyTorch's engine has no use for.
UNUSED = (
    "gradient_accumulation_fusion",
    "main_grads",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_param_gather_with_optim_step",
    "param_gather_from_start",
    "align_grad_reduce",
    "align_param_gather",
    "bucket_size",
    "overlap_p2p_comm",
    "p2p_sync",
    "scatter_gather_tensors_in_pipeline",
    "fp8_param_gather",
    "overlap_moe_expert_parallel_comm",
    "account_for_embedding",
    "account_for_loss",
    "pipeline_layout",
    "launch_blocking",
    "fused_single_qkv_rope",
    "use_transformer_engine_op_fuser",
    "moe_router_fusion",
    "keep_fp8_weight_transpose_cache",
    "nvfp4_rht",
    "overlap_cpu_optimizer_d2h_h2d",
    "defer_embedding_wgrad_compute",
    "fp32_shards",
    "use_precision_aware_optimizer",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "wgrad_deferral_limit",
)


def lower(scenario: Job, model: ModelSpec, site: Site) -> Lowered:
    """As Megatron's, under PyTorch's engine."""
    from prestep.workloads.megatron import (  # they are what takes long to import
        engine,
        lower,
    )

    return lower.lower(scenario, model, site, engine=engine.PYTORCH)


def _trainer(s: Job) -> Iterator[Mistake]:
    for name in PyTorch.__dataclass_fields__:
        value = getattr(s.pytorch, name)
        if value != getattr(PyTorch(), name) and name not in PYTORCH:
            hint = f"of [pytorch] {', '.join(PYTORCH)} count"
            yield Mistake(s.where, f"pytorch.{name}", str(value), "nothing", hint)
    usual = type(s.megatron)()
    for name in UNUSED:
        value = getattr(s.megatron, name)
        if value != getattr(usual, name):
            hint = "a switch of Megatron's own engine; here PyTorch reduces, gathers and sends"
            yield Mistake(s.where, f"megatron.{name}", str(value), "nothing", hint)


def _expert_adapters(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Adapters beside experts: one for each (GroupedExpertsLoRA), or none."""
    beside = bool({"fc1", "fc2"} & set(s.adapter.places))
    if model.experts and beside and s.adapter.experts == "shared":
        hint = "no adapter of Automodel's is shared by experts"
        yield Mistake(
            s.where, "adapter.experts", '"shared"', '"each" or "frozen"', hint
        )


def refusals(s: Job) -> Iterator[Mistake]:
    """Backward passes in halves need parameters that stay."""
    p = s.parallel
    if p.pp > 1 and p.reshard_after_forward and splits_backward(s):
        hint = "a schedule that splits backward keeps gathered parameters"
        yield Mistake(s.where, "parallel.reshard_after_forward", "true", "false", hint)


FRAMEWORK = replace(
    megatron.FRAMEWORK,
    lower=lower,
    updates=("adam",),
    data_parallel=("none", *megatron.FSDP),
    reads={**megatron.FRAMEWORK.reads, "pytorch": PYTORCH},
    rules=(
        ("pytorch megatron training", _trainer),
        *(
            rule
            for rule in megatron.FRAMEWORK.rules
            if rule[1] not in (megatron._trainer, megatron._adapters)
        ),
    ),
    model_rules=(
        *megatron.FRAMEWORK.model_rules,
        ("adapter.experts adapter.targets model.experts", _expert_adapters),
    ),
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
