"""Sparse attention and residual streams: which layers have them, and what Megatron refuses beside them."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import rule
from prestep.workloads.frameworks._pytorch_model import megatrons_own
from prestep.workloads.job import JobSpec
from prestep.workloads.models.model import ModelSpec

with lazily():
    from prestep.workloads.megatron import pipeline_layout


BESIDE = "with model.compress_ratios"


@rule(
    "parallel.tp parallel.cp training training.packed training.recompute megatron.attention "
    "megatron.recompute_modules megatron.fp8_dot_product_attention adapter.targets model.compress_ratios "
    "model.index_topk model.index_pattern parallel.pp parallel.vpp megatron.pipeline_layout"
)
def in_megatron(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Layers of Megatron's own engine alone."""
    if s.training.framework != "megatron":
        yield from megatrons_own(s, model)
        if getattr(model, "indexed", False):
            hint = f'"{s.training.framework}" has layers of its own: training.framework = "megatron" has these'
            expected = "nothing: attention to keys that an indexer chooses is not simulated there"
            yield s.mistake("model.index_topk", expected, hint, model.index_topk)
    elif model.compress_ratios:
        yield from _spread(s)
        yield from _core(s)
    elif getattr(model, "indexed", False):
        yield from _core(s)
        yield from _shared_choices(s, model)


def _spread(s: JobSpec) -> Iterator[Mistake]:
    """All heads and whole samples are on one rank (DSv4HybridAttention)."""
    hint = "Megatron's dsv4_hybrid attention has all heads on every rank"
    yield from s.refused(["parallel.tp"], f"1 {BESIDE}", hint)
    hint = "Megatron cuts packed documents for it, which is not simulated"
    yield from s.refused(["parallel.cp"], f"1 {BESIDE}", hint)
    hint = "compressed keys of packed documents are not simulated"
    yield from s.refused(["training.packed"], "nothing", hint)
    if s.adapter.on:
        hint = "adapters beside compressed attention are not simulated"
        yield s.mistake("adapter.targets", "no [adapter]", hint)


def _core(s: JobSpec) -> Iterator[Mistake]:
    """Its core has kernels of its own, and does not run again."""
    if s.megatron.attention != "flash":
        hint = "this attention has sparse kernels of its own"
        yield s.mistake("megatron.attention", '"flash"', hint)
    hint = "attention with sparse kernels does not run its core again"
    if s.training.recompute == "selective":
        yield s.mistake("training.recompute", '"none"', hint)
    elif "core_attn" in s.megatron.recompute_modules:
        expected, found = "others: mla_up_proj, moe_act", '"core_attn"'
        yield s.mistake("megatron.recompute_modules", expected, hint, found)
    key = "megatron.fp8_dot_product_attention"
    yield from s.refused([key], "false", "its sparse kernels take 16 bits")


def _shared_choices(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """A stage begins with a layer that has an indexer: choices do not travel between stages."""
    begin = 0
    for count in _stages(s, model):
        if begin < model.layers and count and not model.ratio_of(begin):
            hint = "choices of keys do not travel between stages: megatron.pipeline_layout moves their ends"
            expected = (
                f"stages that begin with an indexer, and layer {begin + 1} has none"
            )
            yield s.mistake("parallel.pp", expected, hint)
            return
        begin += count


@rule(
    "parallel.pp parallel.vpp megatron.pipeline_layout megatron.overlap_moe_expert_parallel_comm "
    "model.hash_layers model.layers"
)
def hashed(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Experts chosen by tokens' numbers are where these are: on the first stage, and not beside other microbatches."""
    if model.kind != "transformer" or not model.hash_layers:
        return
    first = next(iter(_stages(s, model)), None)
    if first is not None and model.hash_layers > first:
        hint = "tokens' numbers are on the first stage alone (moe_n_hash_layers)"
        expected = f"at most its {first} layers"
        yield s.mistake("model.hash_layers", expected, hint, model.hash_layers)
    hint = "Megatron has none of moe_n_hash_layers beside it"
    overlap = "megatron.overlap_moe_expert_parallel_comm"
    yield from s.refused([overlap], "false", hint)


def _stages(s: JobSpec, model: ModelSpec) -> list[int]:
    """Layers of each stage in a row; none for a layout that is no layout, which is refused elsewhere."""
    text, p = s.megatron.pipeline_layout, s.parallel
    if text is None:
        return [model.layers // (p.pp * p.vpp)] * p.pp * p.vpp
    try:
        return list(map(len, pipeline_layout.pipeline_layout(text).layers))
    except ValueError:
        return []
