"""Megatron-LM: fused layers under tensor, sequence, context, expert, pipeline and data parallelism."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.workloads import histogram, routing
from prestep.workloads.frameworks import Framework, _compressed, foreign, rule
from prestep.workloads.frameworks._megatron_optimizer import (
    FSDP,
    deferred_head,
    offloaded,
    offloaded_caveat,
    precision_aware,
    zero2,
)
from prestep.workloads.frameworks._megatron_pipeline import chunks, groups, layout
from prestep.workloads.frameworks._pytorch_trainer import no_root, shards
from prestep.workloads.job import JobSpec
from prestep.workloads.job.adapter import USUAL
from prestep.workloads.job.layout import axis_order, splits_backward
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.models.projections import passed_over, projections_of
from prestep.workloads.optimizer import optimizer
from prestep.workloads.precision import precision

with lazily():  # it is what takes long to import
    from prestep.workloads.megatron import lower

if TYPE_CHECKING:
    from prestep.workloads.lowered import Site


def marks(site: Site) -> Sequence[Hashable]:
    """GPUs, faults and links of hosts."""
    return tuple(site.unlike.marks)


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement."""
    yield from offloaded_caveat(s)
    if s.adapter.on:
        yield from _adapter_caveats(s, model)
    if model.compress_ratios or getattr(model, "indexed", False):
        yield (
            "sparse attention: layers follow Megatron's source, its kernels the rate that FlashMLA's README "
            "prints; no step with them was measured"
        )
        if s.training.packed is not None:
            yield (
                "packed samples: kernels of sparse attention that are compiled anew for samples of another width, "
                "seconds a step (NVIDIA/cudnn-frontend, issue 1188), are not simulated"
            )


def _adapter_caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """Targets without a projection, and adapters beside which nothing was measured."""
    missing = passed_over(s.adapter, model)
    if missing and s.adapter.targets != USUAL:
        yield f"no adapters in {', '.join(missing)}: the model has no such projections"
    beside = {"fc1", "fc2"} & set(s.adapter.places)
    if model.experts and beside and s.adapter.experts != "frozen":
        yield "adapters beside experts follow their source: no step with them was measured"


@rule("parallel parallel.order parallel.ep parallel.etp")
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
        found = f'"{"-".join(order)}"'
        yield s.mistake("parallel.order", "an order with pp last", hint, found)


@rule("model.kind")
def _transformer(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Models of other layers."""
    if model.kind != "transformer":
        hint = (
            f"Megatron's layers are those of transformers, and this is a {model.kind}"
        )
        yield s.mistake("training.framework", "pytorch-eager or cuda-graph", hint)


@rule("parallel.tp parallel.etp parallel.imbalance model.experts")
def _experts(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Loads of experts, and sequences in parts beside them."""
    if not model.experts:
        return
    yield from _loads(s, model)
    if s.parallel.tp > 1 and not s.parallel.sequence_parallel:
        hint = "Megatron wants it for experts beside tensor parallelism"
        yield s.mistake("parallel.sequence_parallel", "true", hint)


def _loads(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """The tokens of experts: a known word with a number, or a load for each expert."""
    key, loads = "parallel.imbalance", s.parallel.imbalance
    if isinstance(loads, str):
        yield from _routing(s, model, loads)
    elif len(loads) != model.experts:
        expected = f"{model.experts}, one for each expert"
        yield s.mistake(key, expected, found=f"{len(loads)} loads")
    elif min(loads) < 0 or sum(loads) <= 0:
        expected = "no load below 0, and some above"
        yield s.mistake(key, expected, found=str(list(loads))[:60])


def _routing(s: JobSpec, model: ModelSpec, name: str) -> Iterator[Mistake]:
    """A law or a preset that there is, or a file with as many experts and layers as the model has."""
    key = "parallel.imbalance"
    if not histogram.is_file(name):
        if not routing.is_known(name):
            yield s.mistake(key, routing.expected())
        return
    try:
        layers = histogram.read(name, model.experts)
    except InputError as error:
        yield from error.mistakes
        return
    if len(layers[0]) != model.experts:
        found = f"{len(layers[0])} experts in {name}"
        yield s.mistake(key, f"{model.experts}, as the model has", found=found)
    with_experts = sum(model.has_experts(i) for i in range(model.layers))
    if len(layers) > 1 and len(layers) < with_experts:
        found, wanted = f"{len(layers)} layers in {name}", with_experts
        yield s.mistake(key, f"1 or {wanted}, the layers with experts", found=found)


@rule("adapter training training.optimizer")
def _adapters(s: JobSpec) -> Iterator[Mistake]:
    """What is not simulated beside frozen weights."""
    if s.adapter.on and optimizer(s.training.optimizer).iterations:
        hint = "orthogonal updates of adapters are not simulated"
        yield s.mistake("training.optimizer", '"adamw" with [adapter]', hint)


@rule("adapter.targets adapter.experts model.kv_lora_rank model.layer_pattern")
def _adapted_model(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """A projection of the model beside which an adapter can be."""
    if not s.adapter.on:
        return
    here = projections_of(model)
    meant = set(s.adapter.places) & set(here)
    if not meant:
        hint = "this model has no other projections"
        yield s.mistake("adapter.targets", f"some of {', '.join(here)}", hint)
    elif meant <= {"fc1", "fc2"} and s.adapter.experts == "frozen":
        parts = model.layer_pattern or [""] * model.layers
        feeds = (part in ("", hybrid.FEED_FORWARD) for part in parts)
        dense = (feed and not model.has_experts(i) for i, feed in enumerate(feeds))
        if not model.shared_experts and not any(dense):
            hint = "every feed-forward layer has experts: nothing would be trained"
            yield s.mistake("adapter.experts", '"shared" or "each"', hint)


@rule("parallel.tp parallel.cp training.framework model.layer_pattern")
def _hybrid(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Scans see whole sequences; a rank of the tensor-parallel group has whole groups of their heads."""
    pattern, tp, cp = model.layer_pattern, s.parallel.tp, s.parallel.cp
    keys = {hybrid.MAMBA: "mamba_groups", hybrid.CONVOLUTION: "hidden"}
    for part in sorted(set(pattern) & set(hybrid.MIXERS)):
        key = keys.get(part, "linear_key_heads")
        count = getattr(model, key)
        if count % tp:
            yield s.mistake(f"model.{key}", f"a multiple of tp = {tp}", found=count)
        elif cp > 1:
            yield from _spread_scan(s, model, part)


@rule("training.deterministic training.packed model.layer_pattern")
def _ordered_scan(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Megatron's gated delta rule in operators of PyTorch, which deterministic programs take, knows no documents."""
    delta = hybrid.DELTA in (model.layer_pattern or "")
    if s.training.deterministic and s.training.packed and delta:
        hint = "Megatron's gated delta rule takes no packed samples with it"
        yield s.mistake("training.deterministic", "false", hint, "true")


def _spread_scan(s: JobSpec, model: ModelSpec, part: str) -> Iterator[Mistake]:
    """Under context parallelism a rank has some heads of a scan, and the groups of keys that they read."""
    tp, cp = s.parallel.tp, s.parallel.cp
    if part == hybrid.MAMBA:
        groups, heads = model.mamba_groups // tp, model.mamba_heads // tp
        whole = heads % cp == 0 and (groups % cp == 0 or cp % groups == 0)
        found = f"{model.mamba_groups} groups of {model.mamba_heads} heads"
        key = "model.mamba_heads"
    else:
        whole = model.linear_key_heads // tp % cp == 0
        found, key = str(model.linear_key_heads), "model.linear_key_heads"
    elsewhere = s.training.framework != "megatron"
    unspread = part in (hybrid.KIMI, hybrid.CONVOLUTION)
    if unspread or (part == hybrid.DELTA and elsewhere):
        hint = f"this mixer over parts of a sequence is not simulated with {s.training.framework}"
        yield s.mistake("parallel.cp", "1 with this hybrid", hint)
    elif not whole:
        expected = f"whole heads for each of tp * cp = {tp * cp} ranks"
        yield s.mistake(key, expected, found=found)


@rule(
    "megatron megatron.fp8_dot_product_attention megatron.attention training.precision"
)
def _fp8_attention(s: JobSpec) -> Iterator[Mistake]:
    """Attention in fp8 beside layers that are not, or by kernels that do not take it."""
    if not s.megatron.fp8_dot_product_attention:
        return
    if not precision(s.training.precision).quantized:
        hint = f'layers are in {s.training.precision}: precision = "fp8" or "nvfp4"'
        yield s.mistake("megatron.fp8_dot_product_attention", "false", hint)
    if s.megatron.attention != "flash":
        hint = "only cuDNN's fused kernel takes fp8"
        yield s.mistake("megatron.attention", '"flash"', hint)


@rule(
    "megatron.fused_single_qkv_rope megatron.rope_fusion training.packed model.positions model.qk_norm "
    "model.attention_gate model.kv_lora_rank"
)
def _whole_rotation(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """What Megatron refuses beside one kernel for cut and rotation (attention.py, transformer_config.py)."""
    if not s.megatron.fused_single_qkv_rope:
        return
    for found, what in (
        (s.training.packed is not None, "training.packed"),
        (not s.megatron.rope_fusion, "megatron.rope_fusion = false"),
        (not model.rotary, "a model without rotated positions"),
        (model.latent, "latent attention"),
        (model.qk_norm, "norms of queries and keys"),
        (model.attention_gate, "a gate of attention's output"),
    ):
        if found:
            hint = f"Megatron's kernel takes no {what}"
            yield s.mistake("megatron.fused_single_qkv_rope", "false", hint)


@rule(
    "megatron.use_transformer_engine_op_fuser parallel.tp adapter.targets model.experts"
)
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
            yield s.mistake(key, "false", hint)


def refusals(s: JobSpec) -> Iterator[Mistake]:
    """Backward passes in halves beside what needs whole ones."""
    p = s.parallel
    sharded, products = p.data_parallel in FSDP, s.training.recompute == "products"
    if p.pp > 1 and (sharded or products) and splits_backward(s):
        way = f'data_parallel = "{p.data_parallel}"'
        beside = way if sharded else 'recompute = "products"'
        hint = f"a schedule that splits backward is not simulated with {beside}"
        yield s.mistake(
            "parallel.schedule", "one whose backward passes are whole", hint
        )


def layers_beside(s: JobSpec) -> int:
    """In Megatron an embedding or a head that counts as a layer may be a stage by itself."""
    return s.megatron.account_for_embedding + s.megatron.account_for_loss


FRAMEWORK = Framework(
    lambda *step: lower.lower(*step),
    marks,
    order=("tp", "cp", "ep", "dp", "pp"),
    precisions=("quantized", "scaled loss"),
    updates=("adam", "orthogonal"),
    recompute=("none", "selective", "products", "full"),
    data_parallel=("none", "ddp", "ddp-no-overlap", "zero1", "zero2", *FSDP),
    family="megatron",
    rules=(
        *(foreign, shards, zero2, no_root, offloaded, chunks, groups, precision_aware),
        *(deferred_head, _fp8_attention, _order, _adapters),
    ),
    model_rules=(
        *(_transformer, _experts, _adapted_model, _hybrid, _ordered_scan),
        *(_whole_rotation, _op_fuser),
        *(_compressed.in_megatron, _compressed.hashed, layout),
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
