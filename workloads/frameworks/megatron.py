"""Megatron-LM: fused layers under tensor, sequence, context, expert, pipeline and data parallelism."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from prestep.sim.errors import InputError, Mistake
from prestep.workloads import histogram, routing
from prestep.workloads.frameworks import Framework, _compressed, foreign
from prestep.workloads.frameworks._megatron_optimizer import (
    FSDP,
    deferred_head,
    offloaded,
    offloaded_caveat,
    precision_aware,
    shards,
    zero2,
)
from prestep.workloads.frameworks._megatron_pipeline import chunks, groups, layout
from prestep.workloads.frameworks._pytorch_trainer import no_root
from prestep.workloads.job import JobSpec
from prestep.workloads.job.adapter import USUAL
from prestep.workloads.job.layout import axis_order, splits_backward
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.models.projections import passed_over, projections_of
from prestep.workloads.optimizer import optimizer
from prestep.workloads.precision import precision

if TYPE_CHECKING:
    from prestep.workloads.lowered import Lowered, Site


def lower(scenario: JobSpec, model: ModelSpec, site: Site) -> Lowered:
    """One rank of each pipeline stage for each kind of replica, its layers as recorded units."""
    from prestep.workloads.megatron import lower  # it is what takes long to import

    return lower.lower(scenario, model, site)


def marks(site: Site) -> Sequence[Hashable]:
    """GPUs, faults and links of hosts."""
    return tuple(site.unlike.marks)


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement."""
    yield from offloaded_caveat(s)
    if s.adapter.on:
        yield from _adapter_caveats(s, model)
    if model.compress_ratios:
        yield (
            "compressed attention: layers follow Megatron's source, sparse kernels the rate that FlashMLA's README "
            "prints; no step with them was measured"
        )


def _adapter_caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """Targets without a projection, and adapters beside which nothing was measured."""
    missing = passed_over(s.adapter, model)
    if missing and s.adapter.targets != USUAL:
        yield f"no adapters in {', '.join(missing)}: the model has no such projections"
    beside = {"fc1", "fc2"} & set(s.adapter.places)
    if model.experts and beside and s.adapter.experts != "frozen":
        yield "adapters beside experts follow their source: no step with them was measured"


def _order(s: JobSpec) -> Iterator[Mistake]:
    """Layers with experts lie on a grid of their own, whose pipelines must be the other layers' (`RankGenerator`)."""
    p = s.parallel
    etp = p.tp if p.etp is None else p.etp
    if p.pp == 1 or (p.ep == 1 and etp == p.tp):
        return
    order = axis_order(s)
    inner = order[: order.index("pp")]
    copies = p.dp * p.cp * p.tp // (p.ep * etp)
    degrees = {"tp": p.tp, "cp": p.cp, "dp": p.dp}
    dense = math.prod(degrees.get(axis, 1) for axis in inner)
    degrees = {"tp": etp, "ep": p.ep, "dp": copies}
    spread = math.prod(degrees.get(axis, 1) for axis in inner)
    if dense != spread:
        hint = f"{dense} ranks would lie between two stages, and {spread} in layers with experts"
        key, found = "parallel.order", f'"{"-".join(order)}"'
        yield Mistake(s.where, key, found, "an order with pp last", hint)


def _transformer(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    if model.kind != "transformer":
        found = f'"{s.training.framework}" with kind {model.kind}'
        expected = "pytorch-eager or cuda-graph"
        hint = "Megatron's layers are those of transformers"
        yield Mistake(s.where, "training.framework", found, expected, hint)


def _experts(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    if not model.experts:
        return
    yield from _loads(s, model)
    if s.parallel.tp > 1 and not s.parallel.sequence_parallel:
        hint = "Megatron wants it for experts beside tensor parallelism"
        yield Mistake(s.where, "parallel.sequence_parallel", "false", "true", hint)


def _loads(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """The tokens of experts: a known word with a number, or a load for each expert."""
    key, loads = "parallel.imbalance", s.parallel.imbalance
    if isinstance(loads, str):
        yield from _routing(s, model, loads)
    elif len(loads) != model.experts:
        expected = f"{model.experts}, one for each expert"
        yield Mistake(s.where, key, f"{len(loads)} loads", expected)
    elif min(loads) < 0 or sum(loads) <= 0:
        expected = "no load below 0, and some above"
        yield Mistake(s.where, key, str(list(loads))[:60], expected)


def _routing(s: JobSpec, model: ModelSpec, said: str) -> Iterator[Mistake]:
    """A law or a preset that there is, or a file with as many experts and layers as the model has."""
    key = "parallel.imbalance"
    if not histogram.is_file(said):
        if not routing.is_known(said):
            yield Mistake(s.where, key, f'"{said}"', routing.expected())
        return
    try:
        layers = histogram.read(said)
    except InputError as error:
        yield from error.mistakes
        return
    if len(layers[0]) != model.experts:
        found, wanted = f"{len(layers[0])} experts in {said}", str(model.experts)
        yield Mistake(s.where, key, found, f"{wanted}, as the model has")
    with_experts = sum(model.has_experts(i) for i in range(model.layers))
    if len(layers) > 1 and len(layers) < with_experts:
        found, wanted = f"{len(layers)} layers in {said}", str(with_experts)
        yield Mistake(s.where, key, found, f"1 or {wanted}, the layers with experts")


def _adapters(s: JobSpec) -> Iterator[Mistake]:
    """What is not simulated beside frozen weights."""
    if not s.adapter.on:
        return
    if optimizer(s.training.optimizer).iterations:
        found = f'"{s.training.optimizer}"'
        hint = "orthogonal updates of adapters are not simulated"
        expected = '"adamw" with [adapter]'
        yield Mistake(s.where, "training.optimizer", found, expected, hint)


def _adapted_model(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """A projection of the model beside which an adapter can be."""
    if not s.adapter.on:
        return
    here, found = projections_of(model), ", ".join(s.adapter.targets)
    meant = set(s.adapter.places) & set(here)
    if not meant:
        expected = f"some of {', '.join(here)}"
        hint = "this model has no other projections"
        yield Mistake(s.where, "adapter.targets", found, expected, hint)
    elif meant <= {"fc1", "fc2"} and s.adapter.experts == "frozen":
        parts = model.layer_pattern or [""] * model.layers
        feeds = (part in ("", hybrid.FEED_FORWARD) for part in parts)
        dense = (feed and not model.has_experts(i) for i, feed in enumerate(feeds))
        if not model.shared_experts and not any(dense):
            hint = "every feed-forward layer has experts: nothing would be trained"
            expected = '"shared" or "each"'
            yield Mistake(s.where, "adapter.experts", '"frozen"', expected, hint)


def _hybrid(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Scans see whole sequences; a rank of the tensor-parallel group has whole groups of their heads."""
    pattern, tp, cp = model.layer_pattern, s.parallel.tp, s.parallel.cp
    scans = set(pattern) & set(hybrid.SCANS)
    for part in sorted(scans):
        key = "mamba_groups" if part == hybrid.MAMBA else "linear_key_heads"
        if getattr(model, key) % tp:
            expected = f"a multiple of tp = {tp}"
            yield Mistake(s.where, f"model.{key}", str(getattr(model, key)), expected)
        elif cp > 1:
            yield from _spread_scan(s, model, part)


def _spread_scan(s: JobSpec, model: ModelSpec, part: str) -> Iterator[Mistake]:
    """Under context parallelism a rank has some heads of a scan, and the groups of keys that they read."""
    tp, cp = s.parallel.tp, s.parallel.cp
    if part == hybrid.MAMBA:
        groups, heads = model.mamba_groups // tp, model.mamba_heads // tp
        whole = heads % cp == 0 and (groups % cp == 0 or cp % groups == 0)
        said = f"{model.mamba_groups} groups of {model.mamba_heads} heads"
        key = "model.mamba_heads"
    else:
        whole = model.linear_key_heads // tp % cp == 0
        said, key = str(model.linear_key_heads), "model.linear_key_heads"
    elsewhere = s.training.framework != "megatron"
    if part == hybrid.KIMI or (part == hybrid.DELTA and elsewhere):
        hint = f"this scan over parts of a sequence is not simulated with {s.training.framework}"
        yield Mistake(s.where, "parallel.cp", str(cp), "1 with this hybrid", hint)
    elif not whole:
        expected = f"whole heads for each of tp * cp = {tp * cp} ranks"
        yield Mistake(s.where, key, said, expected)


def _fp8_attention(s: JobSpec) -> Iterator[Mistake]:
    """Attention in fp8 beside layers that are not, or by kernels that do not take it."""
    if not s.megatron.fp8_dot_product_attention:
        return
    key, on = "megatron.fp8_dot_product_attention", "true"
    if not precision(s.training.precision).quantized:
        hint = f'layers are in {s.training.precision}: precision = "fp8" or "nvfp4"'
        yield Mistake(s.where, key, on, "false", hint)
    if s.megatron.attention != "flash":
        hint = "only cuDNN's fused kernel takes fp8"
        key, found = "megatron.attention", f'"{s.megatron.attention}"'
        yield Mistake(s.where, key, found, '"flash"', hint)


def _whole_rotation(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """What Megatron refuses beside one kernel for cut and rotation (attention.py, transformer_config.py)."""
    if not s.megatron.fused_single_qkv_rope:
        return
    for found, said in (
        (s.training.packed is not None, "training.packed"),
        (not s.megatron.rope_fusion, "megatron.rope_fusion = false"),
        (not model.rotary, "a model without rotated positions"),
        (model.latent, "latent attention"),
        (model.qk_norm, "norms of queries and keys"),
        (model.attention_gate, "a gate of attention's output"),
    ):
        if found:
            hint = f"Megatron's kernel takes no {said}"
            key = "megatron.fused_single_qkv_rope"
            yield Mistake(s.where, key, "true", "false", hint)


def _op_fuser(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """What Transformer Engine's operation fuser does not take, or is simulated by another key."""
    key = "megatron.use_transformer_engine_op_fuser"
    if not s.megatron.use_transformer_engine_op_fuser:
        return
    places = set(s.adapter.places) & {"fc1", "fc2"}
    for found, hint in (
        (model.experts > 0, "experts' fused kernels are megatron.moe_fused_mlp"),
        (
            s.adapter.on and s.parallel.tp > 1,
            "fused adapters are not spread over tensor-parallel ranks",
        ),
        (bool(places), "a fused feed-forward part takes no adapters"),
    ):
        if found:
            yield Mistake(s.where, key, "true", "false", hint)


def refusals(s: JobSpec) -> Iterator[Mistake]:
    """Backward passes in halves beside what needs whole ones."""
    p = s.parallel
    sharded, products = p.data_parallel in FSDP, s.training.recompute == "products"
    if p.pp > 1 and (sharded or products) and splits_backward(s):
        way = f'data_parallel = "{p.data_parallel}"'
        beside = way if sharded else 'recompute = "products"'
        hint = f"a schedule that splits backward is not simulated with {beside}"
        key, expected = "parallel.schedule", "one whose backward passes are whole"
        yield Mistake(s.where, key, f'"{p.schedule}"', expected, hint)


def layers_beside(s: JobSpec) -> int:
    """In Megatron an embedding or a head that counts as a layer may be a stage by itself."""
    return s.megatron.account_for_embedding + s.megatron.account_for_loss


FRAMEWORK = Framework(
    lower,
    marks,
    order=("tp", "cp", "ep", "dp", "pp"),
    precisions=("quantized", "scaled loss"),
    updates=("adam", "orthogonal"),
    recompute=("none", "selective", "products", "full"),
    data_parallel=("none", "ddp", "ddp-no-overlap", "zero1", "zero2", *FSDP),
    family="megatron",
    rules=(
        ("pytorch megatron training", foreign),
        (
            "parallel parallel.fsdp_shards parallel.dp parallel.cp parallel.data_parallel",
            shards,
        ),
        ("parallel parallel.pp parallel.data_parallel", zero2),
        ("parallel", no_root),
        (
            "parallel parallel.offload parallel.data_parallel training.optimizer",
            offloaded,
        ),
        ("parallel parallel.pp parallel.vpp parallel.schedule", chunks),
        (
            "megatron.microbatch_group_size_per_vp_stage parallel parallel.pp parallel.schedule training",
            groups,
        ),
        (
            "megatron megatron.use_precision_aware_optimizer parallel.data_parallel parallel.offload "
            "training.optimizer training.framework",
            precision_aware,
        ),
        (
            "megatron megatron.defer_embedding_wgrad_compute parallel.pp parallel.data_parallel parallel.schedule "
            "training.framework",
            deferred_head,
        ),
        (
            "megatron megatron.fp8_dot_product_attention megatron.attention training.precision",
            _fp8_attention,
        ),
        ("parallel parallel.order parallel.ep parallel.etp", _order),
        ("adapter training training.optimizer", _adapters),
    ),
    model_rules=(
        ("model.kind", _transformer),
        ("parallel.tp parallel.etp parallel.imbalance model.experts", _experts),
        (
            "adapter.targets adapter.experts model.kv_lora_rank model.layer_pattern",
            _adapted_model,
        ),
        ("parallel.tp parallel.cp training.framework model.layer_pattern", _hybrid),
        (
            "megatron.fused_single_qkv_rope megatron.rope_fusion training.packed model.positions model.qk_norm "
            "model.attention_gate model.kv_lora_rank",
            _whole_rotation,
        ),
        (
            "megatron.use_transformer_engine_op_fuser parallel.tp adapter.targets model.experts",
            _op_fuser,
        ),
        (
            "parallel.tp parallel.cp training training.packed training.recompute megatron.attention "
            "megatron.recompute_modules megatron.fp8_dot_product_attention adapter.targets model.compress_ratios",
            _compressed.in_megatron,
        ),
        (
            "parallel.pp parallel.vpp megatron.pipeline_layout megatron.overlap_moe_expert_parallel_comm "
            "model.hash_layers model.layers",
            _compressed.hashed,
        ),
        (
            "megatron.pipeline_layout megatron.account_for_embedding megatron.account_for_loss "
            "parallel.pp parallel.vpp model.layers model.mtp_layers",
            layout,
        ),
    ),
    refusals=refusals,
    tries={
        "parallel.data_parallel": ("ddp", "zero1"),
        "parallel.etp": (None, 1),
        "training.recompute": ("none", "selective", "full"),
    },
    level=True,
    fused_load=True,
    folds_layers=True,
    few_microbatches=True,
    context_parallel=True,
    shares_heads=True,
    master=True,
    blockwise=True,  # its default (muon_tp_mode)
    layers_beside=layers_beside,
    adapters=True,
    packs=True,
    caveats=caveats,
)
