"""Models that PyTorch's plain modules (workloads/torch) do not have, or not beside a trainer's choices."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import rule
from prestep.workloads.frameworks._pytorch_trainer import MEGATRON
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


@rule("training model.compress_ratios model.streams")
def megatrons_own(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Parts of a model that a framework's layers do not have."""
    if model.kind != "transformer":
        return
    found = {
        "compress_ratios": bool(model.compress_ratios),
        "streams": model.streams > 1,
        "hash_layers": model.hash_layers > 0,
    }
    hint = f'"{s.training.framework}" has no such layers: training.framework = "megatron" has'
    for key in OWN:
        value = getattr(model, key)
        # Of many ratios only that they are there.
        text = f"{len(value)} ratios" if isinstance(value, tuple) else value
        if found[key]:
            yield s.mistake(f"model.{key}", "nothing", hint, text)


def missing_parts(model: object) -> list[str]:
    """Keys of a model that make it one of other layers, with their values."""
    return ['positions = "alibi"'] if getattr(model, "positions", "") == "alibi" else []


@rule("model")
def parts(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Layers that PyTorch's plain modules do not have."""
    parts = missing_parts(model) if model.kind == "transformer" else []
    if parts:
        expected = f'{MEGATRON}, or "automodel" under FSDP'
        hint = "PyTorch's plain modules have no such layers"
        yield s.mistake("model", expected, hint, ", ".join(parts))


@rule("pytorch.vocabulary model.positions")
def positions(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Learned positions beside an embedding of tokens whose rows are split over ranks."""
    if getattr(model, "positions", "") == "learned":
        hint = "looked up tokens are parts of a sequence then, positions are not"
        expected = '"whole" with learned positions'
        yield from s.refused(["pytorch.vocabulary"], expected, hint)


@rule("parallel.root_groups model.mtp_layers")
def root_groups(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Further predictions, which use embedding and head outside of the groups that hold them."""
    if s.parallel.root_groups == "split" and model.mtp_layers:
        hint = "blocks of further predictions use the embedding and the head too"
        yield s.mistake("parallel.root_groups", '"one" with mtp_layers', hint)


@rule("training pytorch model")
def wide(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """32-bit numbers where a part of the model or the trainer has none."""
    number = s.training.precision
    if not precision(number).wide:
        return
    keys = ("pytorch.master_weights", "pytorch.wide_moments", "pytorch.modules")
    yield from s.refused(keys, "nothing", f"{number} is in 32 bits itself")
    if optimizer(s.training.optimizer).iterations:
        hint = "its products are in bf16 beside products in 32 bits"
        yield s.mistake("training.optimizer", "an elementwise optimizer", hint)
    if model.kind == "mlp":
        return
    experts = getattr(model, "experts", 0)
    if model.kind != "transformer" or experts:
        dense = "bf16, or a dense transformer or mlp"
        yield s.mistake("training.precision", dense, RECORDED)
        return
    hint = (
        "FlashAttention computes in 16 bits; fp32 goes by the memory-efficient kernel"
    )
    yield from s.refused(["pytorch.attention"], "nothing", hint)
    width = getattr(model, "head_dim", 0)
    if width % WHOLE_VECTOR:
        hint = "without it attention is not fused; " + RECORDED
        yield s.mistake("model.head_dim", f"a multiple of {WHOLE_VECTOR}", hint, width)


@rule("parallel.tp parallel.cp training.precision model.layer_pattern model.moe_latent")
def hybrids(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Scans and convolutions see whole sequences, and no plan splits their heads, or narrow tokens."""
    if model.kind != "transformer":
        return
    if getattr(model, "moe_latent", 0):
        hint = f"no plan splits experts behind narrowing projections: {MEGATRON}"
        yield from s.refused(["parallel.tp"], "1 with moe_latent", hint)
    if not set(model.layer_pattern) & set(hybrid.MIXERS):
        return
    hint = f"no plan of torchtitan's or Automodel's splits scans or convolutions: {MEGATRON} does"
    yield from s.refused(["parallel.tp"], "1 with a hybrid", hint)
    hint = "scans and convolutions over parts of a sequence are not simulated"
    yield from s.refused(["parallel.cp"], "1 with a hybrid", hint)
    scans = set(model.layer_pattern) & set(hybrid.SCANS)
    if scans and precision(s.training.precision).wide:
        hint = "scans were measured in 16 bits"
        yield s.mistake("training.precision", "bf16 with a hybrid", hint)


@rule("pytorch.modules model.kind model.mtp_layers")
def modules(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Modules of transformers where the model has none, or parts that transformers does not train."""
    if s.pytorch.modules == "plain":
        return
    if model.mtp_layers:
        hint = "transformers trains the next token alone"
        expected = f'0 with pytorch.modules = "{s.pytorch.modules}"'
        yield s.mistake("model.mtp_layers", expected, hint, model.mtp_layers)
    if model.kind != "transformer":
        yield s.mistake("pytorch.modules", f"nothing with a model of kind {model.kind}")


@rule("pytorch model.kind parallel.cp parallel.pp model.index_pattern")
def latent(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Attention's choices that latent attention does not have."""
    if model.kind != "transformer" or not model.latent:
        return
    hint = (
        "latent attention has compressing projections, and values narrower than queries"
    )
    yield from s.refused(["pytorch.joined_qkv"], "nothing", hint)
    if getattr(model, "attention_gate", False):
        expected, gate = (
            "nothing with kv_lora_rank",
            "latent attention has no gate here",
        )
        yield s.mistake("model.attention_gate", expected, gate, True)
    if s.pytorch.attention == "triton":
        yield s.mistake("pytorch.attention", "cudnn or flash2", hint)
    if model.indexed:
        hint = 'an indexer sees whole sequences here: training.framework = "megatron" spreads them'
        yield from s.refused(["parallel.cp"], "1 with index_topk", hint)
    if model.index_pattern:
        hint = "a choice of keys that layers share does not travel between stages"
        yield from s.refused(["parallel.pp"], "1 with index_pattern", hint)


@rule("pytorch training parallel.cp parallel.ring_degree training.seq_len model")
def window(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Windows where the kernel has none, or where ranks of a ring would not need all keys."""
    key, window = "model.window", getattr(model, "window", 0)
    if not window or window >= s.training.seq_len:
        return
    if s.parallel.rings > 1:
        hint = "ranks then need keys of their neighbours alone, which is not simulated"
        expected = "nothing with cp, or parallel.ring_degree = 1"
        yield s.mistake(key, expected, hint, window)
    if s.pytorch.attention == "triton" or precision(s.training.precision).wide:
        expected = 'nothing, or 16 bits with pytorch.attention = "cudnn" or "flash2"'
        hint = "this attention's kernel has no window"
        yield s.mistake(key, expected, hint, window)


@rule("pytorch.experts pytorch.modules training.framework parallel.ep model.experts")
def grouped(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Grouped products where no layer has experts, or where a host that waits is not recorded."""
    if s.pytorch.experts != "grouped":
        return
    if not (model.kind == "transformer" and model.experts):
        yield s.mistake("pytorch.experts", "nothing without experts")
    elif s.training.framework == "cuda-graph" and s.parallel.ep > 1:
        hint = "the host waits for numbers of rows, which a CUDA graph cannot hold"
        yield s.mistake("pytorch.experts", '"loop" with ep > 1', hint)
    elif s.pytorch.modules == "transformers" and s.parallel.ep > 1:
        hint = "grouped experts of transformers that are spread are not simulated"
        yield s.mistake("pytorch.experts", '"loop" with ep > 1', hint)


def _adapted(model: ModelSpec) -> tuple[str, ...]:
    """Projections beside which adapters can be; in latent attention "qkv" stands for all but the output's."""
    names = projections.projections_of(model)
    return ("qkv", *names) if "kv_down" in names else names


@rule("adapter adapter.targets pytorch.experts model.kind model.layer_pattern")
def adapted_model(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Adapters beside projections of a transformer, and of experts that are modules of their own."""
    if not s.adapter.on:
        return
    if model.kind != "transformer":
        yield s.mistake("adapter.kind", "a transformer", f"not a {model.kind}")
    elif s.pytorch.experts == "grouped" and {"fc1", "fc2"} & set(s.adapter.places):
        hint = (
            "experts in one weight have no layers that PEFT could put adapters beside"
        )
        expected = 'targets ["qkv", "proj"], or pytorch.experts = "loop"'
        yield s.mistake("adapter.targets", expected, hint)
    elif not set(s.adapter.places) & set(_adapted(model)):
        expected = f"some of {', '.join(_adapted(model))}"
        hint = "this model has no other projections"
        yield s.mistake("adapter.targets", expected, hint)
