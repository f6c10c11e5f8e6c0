"""Models that PyTorch's plain modules (workloads/torch) do not have, or not beside a trainer's choices."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks._pytorch_trainer import MEGATRON, stated
from prestep.workloads.job import JobSpec
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.optimizer import optimizer
from prestep.workloads.precision import precision

with lazily():
    from prestep.workloads.models import projections

#: Numbers in fp32 that memory-efficient attention reads at once (sdp_utils.cpp).
WHOLE_VECTOR = 4
#: Keys of a model whose layers only Megatron's have.
OWN = ("compress_ratios", "streams", "hash_layers")
RECORDED = "a recording of the program (prestep capture) runs in any format"


def megatrons_own(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Parts of a model that a framework's layers do not have."""
    if model.kind != "transformer":
        return
    found = {
        "compress_ratios": bool(model.compress_ratios),
        "streams": model.streams > 1,
        "hash_layers": model.hash_layers > 0,
    }
    for key in OWN:
        if found[key]:
            hint = f'"{s.training.framework}" has no such layers: training.framework = "megatron" has'
            value = getattr(model, key)
            # Of many ratios only that they are there.
            text = f"{len(value)} ratios" if isinstance(value, tuple) else str(value)
            yield Mistake(s.where, f"model.{key}", text, "nothing", hint)


def missing_parts(model: object) -> list[str]:
    """Keys of a model that make it one of other layers, with their values."""
    return ['positions = "alibi"'] if getattr(model, "positions", "") == "alibi" else []


def parts(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    parts = missing_parts(model) if model.kind == "transformer" else []
    if parts:
        yield Mistake(
            s.where,
            "model",
            ", ".join(parts),
            f'{MEGATRON}, or "automodel" under FSDP',
            "PyTorch's plain modules have no such layers",
        )


def positions(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Learned positions beside an embedding of tokens whose rows are split over ranks."""
    choice = s.pytorch.vocabulary
    if choice != "whole" and getattr(model, "positions", "") == "learned":
        hint = "looked up tokens are parts of a sequence then, positions are not"
        expected = '"whole" with learned positions'
        yield Mistake(s.where, "pytorch.vocabulary", f'"{choice}"', expected, hint)


def root_groups(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Further predictions, which use embedding and head outside of the groups that hold them."""
    if s.parallel.root_groups == "split" and model.mtp_layers:
        hint = "blocks of further predictions use the embedding and the head too"
        expected = '"one" with mtp_layers'
        yield Mistake(s.where, "parallel.root_groups", '"split"', expected, hint)


def wide(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """32-bit numbers where a part of the model or the trainer has none."""
    number, where = s.training.precision, s.where
    if not precision(number).wide:
        return
    for key, value in stated(s, ("master_weights", "wide_moments", "modules")):
        yield Mistake(where, key, value, "nothing", f"{number} is in 32 bits itself")
    if optimizer(s.training.optimizer).iterations:
        hint = "its products are in bf16 beside products in 32 bits"
        found, expected = f'"{s.training.optimizer}"', "an elementwise optimizer"
        yield Mistake(where, "training.optimizer", found, expected, hint)
    if model.kind == "mlp":
        return
    stated_as, dense = f'"{number}"', "bf16, or a dense transformer or mlp"
    experts = getattr(model, "experts", 0)
    if model.kind != "transformer" or experts:
        yield Mistake(where, "training.precision", stated_as, dense, RECORDED)
        return
    for key, value in stated(s, ("attention",)):
        hint = "FlashAttention computes in 16 bits; fp32 goes by the memory-efficient kernel"
        yield Mistake(where, key, f'"{value}"', "nothing", hint)
    width = getattr(model, "head_dim", 0)
    if width % WHOLE_VECTOR:
        hint = "without it attention is not fused; " + RECORDED
        found, expected = str(width), f"a multiple of {WHOLE_VECTOR}"
        yield Mistake(where, "model.head_dim", found, expected, hint)


def hybrids(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Scans see whole sequences, and no plan of torchtitan's or Automodel's splits their heads, or narrow tokens."""
    if model.kind != "transformer":
        return
    p, instead = s.parallel, MEGATRON
    narrow = getattr(model, "moe_latent", 0)
    if narrow and p.tp > 1:
        hint = f"no plan splits experts behind narrowing projections: {instead}"
        yield Mistake(s.where, "parallel.tp", str(p.tp), "1 with moe_latent", hint)
    if not set(model.layer_pattern) & set(hybrid.SCANS):
        return
    if p.tp > 1:
        hint = f"no plan of torchtitan's or Automodel's splits heads of scans: {instead} does"
        yield Mistake(s.where, "parallel.tp", str(p.tp), "1 with a hybrid", hint)
    if p.cp > 1:
        hint = "scans over parts of a sequence are not simulated yet"
        yield Mistake(s.where, "parallel.cp", str(p.cp), "1 with a hybrid", hint)
    number = s.training.precision
    if precision(number).wide:
        hint = "scans were measured in 16 bits"
        where = "training.precision"
        yield Mistake(s.where, where, f'"{number}"', "bf16 with a hybrid", hint)


def modules(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Modules of transformers where the model has none, or parts that transformers does not train."""
    if s.pytorch.modules == "plain":
        return
    if model.mtp_layers:
        hint = "transformers trains the next token alone"
        found = str(model.mtp_layers)
        expected = f'0 with pytorch.modules = "{s.pytorch.modules}"'
        yield Mistake(s.where, "model.mtp_layers", found, expected, hint)
    if model.kind == "transformer":
        return
    found = f'"{s.pytorch.modules}"'
    expected = f"nothing with a model of kind {model.kind}"
    yield Mistake(s.where, "pytorch.modules", found, expected)


def latent(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Attention's choices that latent attention does not have."""
    if model.kind != "transformer" or not model.latent:
        return
    hint = (
        "latent attention has compressing projections, and values narrower than queries"
    )
    for key, value in stated(s, ("joined_qkv",)):
        yield Mistake(s.where, key, value, "nothing", hint)
    if getattr(model, "attention_gate", False):
        key, told = "model.attention_gate", "latent attention has no gate here"
        yield Mistake(s.where, key, "true", "nothing with kv_lora_rank", told)
    if s.pytorch.attention == "triton":
        expected = "cudnn or flash2"
        yield Mistake(s.where, "pytorch.attention", '"triton"', expected, hint)


def window(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Windows where the kernel has none, or where ranks of a ring would not need all keys."""
    window = getattr(model, "window", 0)
    if not window or window >= s.training.seq_len:
        return
    found = str(window)
    if s.parallel.rings > 1:
        hint = "ranks then need keys of their neighbours alone, which is not simulated"
        expected = "nothing with cp, or parallel.ring_degree = 1"
        yield Mistake(s.where, "model.window", found, expected, hint)
    if s.pytorch.attention == "triton" or precision(s.training.precision).wide:
        hint = "this attention's kernel has no window"
        expected = 'nothing, or 16 bits with pytorch.attention = "cudnn" or "flash2"'
        yield Mistake(s.where, "model.window", found, expected, hint)


def grouped(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Grouped products where no layer has experts, or where a host that waits is not recorded."""
    if s.pytorch.experts == "loop":
        return
    found = f'"{s.pytorch.experts}"'
    if not (model.kind == "transformer" and model.experts):
        yield Mistake(s.where, "pytorch.experts", found, "nothing without experts")
    elif s.training.framework == "cuda-graph" and s.parallel.ep > 1:
        hint = "the host waits for numbers of rows, which a CUDA graph cannot hold"
        yield Mistake(s.where, "pytorch.experts", found, '"loop" with ep > 1', hint)


def _adapted(model: ModelSpec) -> tuple[str, ...]:
    """Projections beside which adapters can be; in latent attention "qkv" stands for all but the output's."""
    names = projections.projections_of(model)
    return ("qkv", *names) if "kv_down" in names else names


def adapted_model(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Adapters beside projections of a transformer, and of experts that are modules of their own."""
    if not s.adapter.on:
        return
    found = f'"{s.adapter.kind}"'
    if model.kind != "transformer":
        expected = "a transformer"
        yield Mistake(s.where, "adapter.kind", found, expected, f"not a {model.kind}")
    elif s.pytorch.experts == "grouped" and {"fc1", "fc2"} & set(s.adapter.places):
        hint = (
            "experts in one weight have no layers that PEFT could put adapters beside"
        )
        expected = 'targets ["qkv", "proj"], or pytorch.experts = "loop"'
        found = ", ".join(s.adapter.targets)
        yield Mistake(s.where, "adapter.targets", found, expected, hint)
    elif not set(s.adapter.places) & set(_adapted(model)):
        found, expected = ", ".join(s.adapter.targets), ", ".join(_adapted(model))
        hint = "this model has no other projections"
        yield Mistake(s.where, "adapter.targets", found, f"some of {expected}", hint)
