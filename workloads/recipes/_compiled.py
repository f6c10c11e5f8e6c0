"""Which framework stands for compiled blocks of plain PyTorch: pytorch-compiled, or Megatron's fused layers.

Formats put what they say of fp8 into keys of Megatron's layers; here they become those of the framework that is chosen.
"""

from __future__ import annotations

from dataclasses import fields

from prestep.workloads.frameworks.automodel import FRAMEWORK as AUTOMODEL
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.models import hybrid
from prestep.workloads.precision import precision
from prestep.workloads.recipes import _models
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe
from prestep.workloads.recipes._rules import written

#: Frameworks whose blocks are PyTorch's own modules.
PLAIN = ("pytorch-eager", "pytorch-compiled")

#: What `prestep validate published` takes for torchtitan's compiled runs (lab/cases/published/setups.toml).
FUSED = {
    "main_grads": "fp32",
    "cross_entropy_fusion": True,
    "vocab_multiple": 1,
    "recompute_early_stop": True,
}
#: What a reader of a recipe is told.
REASON = (
    "attention by the kernel that PyTorch takes where it is told nothing else: cuDNN's from 2.11 on Hopper and "
    'data-centre Blackwell, else FlashAttention 2 (pytorch.attention = "auto")'
)
#: Kernels of attention in words, and as Megatron's layers call them; "": PyTorch chooses.
KERNELS = {"cudnn": "cuDNN", "flash2": "FlashAttention 2"}
ENGINE = {"": "sdpa", "cudnn": "flash", "flash2": "flash2"}


def experts_of(draft: Recipe) -> int:
    """Experts of the model, as far as it is known."""
    return int(_models.part(draft, "experts") or 0)


def has_fsdp2_root(draft: Recipe) -> bool:
    """Whether plain modules are under FSDP2: then it is asked which groups there are outside of the blocks."""
    plain = draft.get("training.framework") in PLAIN
    sharded = draft.get("parallel.data_parallel") in ("fsdp", "zero2", "zero3")
    return plain and sharded and draft.get("pytorch.fsdp", "2") == "2"


def has_biases(draft: Recipe) -> bool:
    """Whether the model's products add biases, as far as it is known."""
    stated = draft.get("model.bias")
    return bool(_models.part(draft, "bias") if stated is None else stated)


def choose(
    draft: Recipe,
    compiled: bool,
    said: str,
    where: str,
    attention: tuple[str, str] = ("", ""),
) -> None:
    """Compiled blocks as such where they are simulated; split ones as Megatron's fused layers.

    ``attention``: the kernel that the trainer asks for ("cudnn", "flash2") and why; "": PyTorch chooses.
    """
    split = any(draft.get(f"parallel.{axis}", 1) > 1 for axis in ("tp", "pp", "ep"))
    shared = _gathers_otherwise(draft)
    fp8_biases = draft.get("training.precision") == "fp8" and has_biases(draft)
    if not compiled:
        draft.set("training.framework", "pytorch-eager", said, where)
    elif not (split or experts_of(draft) or shared or fp8_biases):
        draft.set("training.framework", "pytorch-compiled", said, where)
        _of_pytorch(draft)
    else:
        draft.set("training.framework", "megatron", said, where)
        _fuse(draft, ENGINE[attention[0]])
        what = "such float8" if shared or fp8_biases else "split blocks"
        draft.assume(
            f"compiled blocks with {what} count as Megatron's fused layers, as in `prestep validate published`"
        )
    _attend(draft, *attention)


def _attend(draft: Recipe, kernel: str, reason: str) -> None:
    """The kernel of attention that a trainer asks for."""
    wide = draft.get("training.precision") in ("fp32", "tf32")
    if not kernel or wide:  # in 32 bits there is one kernel
        return
    if draft.get("training.framework") in PLAIN:
        draft.set("pytorch.attention", kernel)
    draft.assume(f"attention by {KERNELS[kernel]}, {reason}")


def _fuse(draft: Recipe, attention: str) -> None:
    """Keys of plain modules are put aside for those of fused layers."""
    draft.asides |= {
        key: setting
        for key, setting in draft.settings.items()
        if key.startswith("pytorch.")
    }
    draft.drop(*draft.asides)
    for key, value in (FUSED | {"attention": attention}).items():
        draft.set(f"megatron.{key}", value)
    if draft.get("parallel.data_parallel") == "fsdp":
        draft.set("megatron.fp32_shards", True)


def has_adapters(draft: Recipe) -> bool:
    """Whether the framework that was chosen has adapters beside such layers: compiled ones not of every kind."""
    if draft.get("training.framework") != "pytorch-compiled":
        return True
    quantized = precision(draft.get("training.precision", "bf16")).quantized
    return not quantized and not _models.part(draft, "kv_lora_rank")


def stand_in(draft: Recipe) -> None:
    """Where PyTorch's plain modules have no such layers as the model, Transformer Engine's stand for them."""
    if draft.get("training.framework") not in PLAIN:
        return
    missing = [] if _models.part(draft, "positions") != "alibi" else ["positions"]
    scans = set(_models.part(draft, "layer_pattern") or "") & set(hybrid.MIXERS)
    if scans and draft.get("parallel.tp", 1) > 1:
        missing.append("scans whose heads are split")
    if not missing:
        return
    sharded = draft.get("parallel.data_parallel") in ("fsdp", "zero2")
    chosen = "automodel" if sharded else "megatron"
    kernel = ENGINE[draft.get("pytorch.attention", "")]
    kept = AUTOMODEL.reads(PyTorch) if sharded else ()
    for key in [key for key in draft.settings if key.startswith("pytorch.")]:
        if key.removeprefix("pytorch.") not in kept:
            draft.drop(key)
    draft.drop("adapter.fp32")
    draft.set("training.framework", chosen)
    draft.set("megatron.attention", kernel)
    draft.assume(
        f"PyTorch's plain modules have no {', '.join(missing)}: layers of {chosen} stand for them"
    )


def titan_layers(draft: Recipe, masked: bool) -> None:
    """Experts and latent attention as torchtitan has them, where layers are PyTorch's own.

    ``masked``: attention is FlexAttention's, whose kernels take values of any width.
    """
    if draft.get("training.framework") not in PLAIN:
        return
    if experts_of(draft):
        draft.set("pytorch.experts", "grouped")
    if draft.get("pytorch.attention") != "flash2":
        return
    if _models.part(draft, "kv_lora_rank") and not masked:
        draft.set("pytorch.attention", "cudnn")
        draft.assume(
            "but cuDNN's where values are narrower than queries, which FlashAttention 2 does not take"
        )
    elif _models.part(draft, "window") or _models.part(draft, "sinks"):
        draft.assume("FlexAttention, for windows and sinks, counts as FlashAttention 2")


def sharded_experts(draft: Recipe) -> None:
    """Experts under FSDP, of which Megatron's own engine has none, are Automodel's, whose layers are the same."""
    sharded = draft.get("parallel.data_parallel") == "fsdp"
    if draft.get("training.framework") != "megatron" or not (
        sharded and experts_of(draft)
    ):
        return
    keep_what_automodel_reads(draft)
    draft.set("training.framework", "automodel")
    for key in ("reduce_dtype", "master_weights", "clip_gradients"):
        if setting := draft.asides.get(f"pytorch.{key}"):
            draft.set(setting.key, setting.value, setting.said, setting.where)
    draft.assume("experts under FSDP2 count as NeMo Automodel's")


def keep_what_automodel_reads(draft: Recipe) -> None:
    """Takes back switches of Megatron's own engine, in whose place Automodel has PyTorch's."""
    switches = {f"megatron.{key.name}" for key in fields(Megatron)}
    draft.drop(*switches.difference(f"megatron.{k}" for k in AUTOMODEL.reads(Megatron)))


def offload(draft: Recipe, document: Document, said: str) -> None:
    """Parameters in the host's memory, where plain modules are under FSDP2."""
    if written(document.get(said)) != "true":
        return
    if has_fsdp2_root(draft):
        draft.set("parallel.offload", "parameters", said, document)
    else:
        what = "parameters in the host's memory, but of plain modules under FSDP2"
        draft.lose(document, said, "true", what)


def _gathers_otherwise(draft: Recipe) -> bool:
    """Whether weights are said to be gathered in fp8 where torchao cannot: without FSDP, or with scales of parts."""
    gathers = bool(draft.get("megatron.fp8_param_gather"))
    whole = draft.get("megatron.fp8_scaling", "dynamic") == "dynamic"
    return gathers and not (whole and draft.get("parallel.data_parallel") == "fsdp")


def _of_pytorch(draft: Recipe) -> None:
    """Keys of Megatron's fp8 as those of compiled blocks, which have the same words."""
    for key in ("fp8_scaling", "fp8_param_gather"):
        setting = draft.settings.get(f"megatron.{key}")
        if setting is not None:
            draft.set(f"pytorch.{key}", setting.value, setting.said, setting.where)
            draft.drop(f"megatron.{key}")
