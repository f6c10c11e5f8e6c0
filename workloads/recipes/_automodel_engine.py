"""What NeMo Automodel's YAML says of FSDP2, kernels and optimizer where framework "automodel" stands for it."""

from __future__ import annotations

from prestep.workloads.recipes._compiled import REASON, experts_of
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Draft, shown
from prestep.workloads.recipes._rules import written

BACKEND = "model.backend"


def choose(draft: Draft, document: Document) -> None:
    """Keys of [pytorch], [parallel] and [megatron] that the engine reads."""
    _fsdp(draft, document)
    _attention(draft, document)
    _loss(draft, document)
    _adam(draft, document)
    if experts_of(draft):
        _experts(draft, document)
    _layers(draft, document)
    rope = f"{BACKEND}.rope_fusion"
    if not draft.typed(document, rope, "truth", True):
        draft.set("megatron.rope_fusion", False, rope, document)
    # The benchmark's loop has no clipping.
    clips = "Benchmarking" not in str(document.get("recipe", ""))
    draft.set("pytorch.clip_gradients", clips, "recipe", document)


def _layers(draft: Draft, document: Document) -> None:
    """Compiled layers, and how adapters are composed (components/_peft/lora.py)."""
    key = "distributed.enable_compile"
    if draft.is_on(document, key):
        draft.set("pytorch.compiled_layers", True, key, document)
    if draft.get("adapter.kind", "none") != "none":
        draft.set("adapter.scaled", "inner")
        key = "peft.dropout_position"
        position = str(document.get(key, "post"))
        draft.set("adapter.dropout_position", position, key, document)


def _fsdp(draft: Draft, document: Document) -> None:
    """When layers are freed and reduced, and in what type."""
    draft.set("pytorch.reduce_dtype", "fp32")  # mp_policy of FSDP2Config
    staged = draft.get("parallel.pp", 1) > 1
    if experts_of(draft):
        # fully_shard of experts has no mp_policy (components/moe/parallelizer.py).
        draft.set("pytorch.experts_reduce_dtype", "bf16")
        keys: tuple[str, ...] = (
            "distributed.moe.reshard_after_forward",
            "parallelizer.reshard_after_forward",
        )
        defers, usual = f"{BACKEND}.enable_fsdp_optimizations", False
    else:
        keys = ("distributed.reshard_after_forward",)
        defers, usual = "distributed.defer_fsdp_grad_sync", True
    key = next((key for key in keys if key in document.entries), keys[0])
    frees = draft.typed(document, key, "truth", usual and not staged)
    draft.set("parallel.reshard_after_forward", frees, key, document)
    every = not staged and not draft.typed(document, defers, "truth", usual)
    draft.set("pytorch.reduce_every_microbatch", every, defers, document)


def _attention(draft: Draft, document: Document) -> None:
    """cuDNN's by Transformer Engine, FlexAttention, or the kernel that PyTorch takes.

    Beside context parallelism or recomputation Automodel leaves cuDNN's out of what PyTorch may take
    (_transformers/model_init.py, resolve_sdpa_method).
    """
    key = f"{BACKEND}.attn"
    backend = written(document.get(key, "sdpa"))
    if backend in ("te", "cudnn"):
        return
    kernel, again = "flash2", draft.get("training.recompute", "none") != "none"
    if backend == "flex":
        draft.assume("FlexAttention is as fast as FlashAttention 2")
    elif draft.get("parallel.cp", 1) > 1 or again:
        draft.assume(
            "attention by FlashAttention 2, beside context parallelism or recomputation"
        )
    else:
        kernel = "sdpa"
        draft.assume(REASON)
    draft.set("megatron.attention", kernel, key, document)


def _loss(draft: Draft, document: Document) -> None:
    """F.cross_entropy behind a cast to fp32 unless said otherwise, or a kernel of Transformer Engine's."""
    key, upcast = "loss_fn._target_", "loss_fn.fp32_upcast"
    name = shown(document.get(key, "MaskedCrossEntropy")).rpartition(".")[2]
    if "TE" in name or "FusedLinear" in name:
        if "FusedLinear" in name:
            draft.assume("a loss fused with the head counts as Transformer Engine's")
        impl = "te"
    else:
        wide = draft.typed(document, upcast, "truth", True)
        impl = "torch-fp32" if wide else "torch"
    draft.set("megatron.cross_entropy_fusion_impl", impl, key, document)


def _adam(draft: Draft, document: Document) -> None:
    """One kernel for many tensors in Transformer Engine's FusedAdam, with moments in fp32, or where asked for."""
    key, fused = "optimizer._target_", "optimizer.fused"
    engine = "transformer_engine" in str(document.get(key, ""))
    one = engine or draft.is_on(document, fused)
    draft.set("pytorch.fused_optimizer", one, key, document)
    if engine:
        draft.set("pytorch.wide_moments", True, key, document)


def _experts(draft: Draft, document: Document) -> None:
    """Shared experts on a stream of their own; the benchmark's gate deals experts in turn."""
    draft.set("megatron.moe_shared_expert_overlap", True)
    key = f"{BACKEND}.fake_balanced_gate"
    if draft.is_on(document, key):
        draft.set("parallel.routing", "consecutive", key, document)
