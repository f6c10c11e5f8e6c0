"""Compressed attention and residual streams: which layers have them, and what Megatron refuses beside them."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks._pytorch_model import megatrons_own
from prestep.workloads.job import JobSpec
from prestep.workloads.models.model import ModelSpec

with lazily():
    from prestep.workloads.megatron import pipeline_layout


def in_megatron(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Layers of Megatron's own engine alone."""
    if s.training.framework != "megatron":
        yield from megatrons_own(s, model)
    elif model.compress_ratios:
        yield from _spread(s)
        yield from _core(s)


def _spread(s: JobSpec) -> Iterator[Mistake]:
    """All heads and whole samples are on one rank (DSv4HybridAttention)."""
    p, where = s.parallel, s.where
    if p.tp > 1:
        hint = "Megatron's dsv4_hybrid attention has all heads on every rank"
        yield Mistake(
            where, "parallel.tp", str(p.tp), "1 with model.compress_ratios", hint
        )
    if p.cp > 1:
        hint = "Megatron cuts packed documents for it, which is not simulated"
        yield Mistake(
            where, "parallel.cp", str(p.cp), "1 with model.compress_ratios", hint
        )
    if s.training.packed is not None:
        hint = "compressed keys of packed documents are not simulated"
        found = str(s.training.packed)
        yield Mistake(where, "training.packed", found, "nothing", hint)
    if s.adapter.on:
        hint = "adapters beside compressed attention are not simulated"
        found = ", ".join(s.adapter.targets)
        yield Mistake(where, "adapter.targets", found, "no [adapter]", hint)


def _core(s: JobSpec) -> Iterator[Mistake]:
    """Its core has kernels of its own, and does not run again."""
    o, where = s.megatron, s.where
    if o.attention != "flash":
        hint = "compressed attention has sparse kernels of its own"
        found = f'"{o.attention}"'
        yield Mistake(where, "megatron.attention", found, '"flash"', hint)
    if s.training.recompute == "selective" or "core_attn" in o.recompute_modules:
        hint = "Megatron's dsv4_hybrid attention does not run its core again"
        if s.training.recompute == "selective":
            key, found, expected = "training.recompute", '"selective"', '"none"'
        else:
            key, found = "megatron.recompute_modules", '"core_attn"'
            expected = "others: mla_up_proj, moe_act"
        yield Mistake(where, key, found, expected, hint)
    if o.fp8_dot_product_attention:
        hint = "its sparse kernels take 16 bits"
        key = "megatron.fp8_dot_product_attention"
        yield Mistake(where, key, "true", "false", hint)


def hashed(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Experts chosen by tokens' numbers are where these are: on the first stage, and not beside other microbatches."""
    if model.kind != "transformer" or not model.hash_layers:
        return
    first, key = _first_stage(s, model), "model.hash_layers"
    if first is not None and model.hash_layers > first:
        hint = "tokens' numbers are on the first stage alone (moe_n_hash_layers)"
        found, expected = str(model.hash_layers), f"at most its {first} layers"
        yield Mistake(s.where, key, found, expected, hint)
    if s.megatron.overlap_moe_expert_parallel_comm:
        hint = "Megatron has none of moe_n_hash_layers beside it"
        overlap = "megatron.overlap_moe_expert_parallel_comm"
        yield Mistake(s.where, overlap, "true", "false", hint)


def _first_stage(s: JobSpec, model: ModelSpec) -> int | None:
    """Layers of the first stage; None for a layout that is no layout, which is refused elsewhere."""
    text, p = s.megatron.pipeline_layout, s.parallel
    if text is None:
        return model.layers // (p.pp * p.vpp)
    try:
        return len(pipeline_layout.pipeline_layout(text).layers[0])
    except ValueError:
        return None
