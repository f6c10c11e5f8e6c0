"""NeMo Automodel's YAML: Hugging Face's models under FSDP2, tensor, context, pipeline and expert parallelism."""

from __future__ import annotations

from pathlib import Path

from prestep.workloads.job.adapter import targets_of
from prestep.workloads.recipes import _adapter, _compiled, _models, _pipeline
from prestep.workloads.recipes._compiled import REASON, experts_of
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import rules, written

#: How people know such a recipe.
LOOKS = "YAML with step_scheduler and distributed"
RULES = Path(__file__).with_suffix(".toml")
#: Its default of `attn_implementation` (nemo_automodel, components/_transformers/auto_model.py).
#: transformers' modules of which a file says nothing (auto_model.py, DEFAULT_ATTN_IMPLEMENTATION).
FLASH = "flash2", "which Automodel asks for where a file does not"
NAMES = (
    "model.pretrained_model_name_or_path",
    "model.config.pretrained_model_name_or_path",
    "model.config.name_or_path",
)
#: How scales of Transformer Engine's fp8 are found.
SCALING = {
    "current": "dynamic",
    "tensorwise": "dynamic",
    "mxfp8": "mx",
    "rowwise": "rowwise",
}
PREFETCH = "distributed.enable_fsdp2_prefetch"


def recognise(document: Document) -> bool:
    return (
        document.kind == "yaml"
        and {"step_scheduler", "distributed"} <= document.sections()
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the file says, over Automodel's defaults."""
    draft = Recipe("automodel", str(document.path))
    draft.read(document, rules(RULES))
    _model(draft, document)
    _length(draft, document)
    local = "step_scheduler.local_batch_size"
    sizes = (
        "distributed.pipeline.pp_microbatch_size",
        "autopipeline.pp_microbatch_size",
    )
    size = next((key for key in sizes if key in document.entries), sizes[0])
    _pipeline.batch(draft, document, local, "step_scheduler.global_batch_size", size, 1)
    _runs(draft, document, local, size)
    _schedule(draft, document)
    _precision(draft, document)
    _sharding(draft, document)
    _kernels(draft, document)
    _compiled.stand_in(draft)
    _split_adapters(draft, document)
    _optimizer(draft, document)
    if draft.get("training.framework") == "automodel":
        _compiled.keep_what_automodel_reads(draft)
        _choose(draft, document)
    elif draft.is_on(document, PREFETCH):
        draft.assume("layers are gathered in FSDP2's own order, and not ahead")
    _adapters(draft, document)
    draft.hosts = draft.count(document, "benchmark.num_nodes")
    return draft


def _model(draft: Recipe, document: Document) -> None:
    for key in NAMES:
        if document.get(key):
            where = document.place(key)
            _models.choose(draft, document.get(key), key, where, document.path.parent)
            return
    target = document.get("model._target_", "nothing")
    _models.missing(draft, shown(target), "model", document.place("model._target_"))


def _length(draft: Recipe, document: Document) -> None:
    """Tokens of a sample: of a pack, of the mock data, or nobody knows."""
    key = "packed_sequence.packed_sequence_size"
    packed, where = draft.typed(document, key, "whole", 0), document.place(key)
    if packed:
        draft.set("training.seq_len", packed, key, where)
        _models.packed(draft, key, where, packed)
        return
    for key in ("dataset.seq_len", "dataset.seq_length"):
        if document.get(key):
            draft.set("training.seq_len", draft.count(document, key), key, document)
            return
    _models.missing_length(draft, "dataset.seq_len", str(document.path))


def _runs(draft: Recipe, document: Document, local: str, size: str) -> None:
    """A pipeline runs once for each local batch of a global one."""
    if draft.get("parallel.pp", 1) > 1:
        count = max(
            1, draft.count(document, local, 1) // draft.count(document, size, 1)
        )
        draft.set("training.microbatches", count, local, document)


def _schedule(draft: Recipe, document: Document) -> None:
    for prefix in ("distributed.pipeline", "autopipeline"):
        if f"{prefix}.pp_schedule" in document.entries:
            key = f"{prefix}.layers_per_stage"
            said = f"{prefix}.pp_schedule"
            _pipeline.schedule(draft, document, said, key)
            _round_down(draft, document, prefix)
            return


def _round_down(draft: Recipe, document: Document, prefix: str) -> None:
    """Stages as their layers say, rounded down to a multiple of the ranks where that is asked for."""
    key = f"{prefix}.round_virtual_stages_to_pp_multiple"
    per_stage = draft.count(document, f"{prefix}.layers_per_stage")
    layers, pp = _pipeline.layers_of(draft), draft.get("parallel.pp", 1)
    if written(document.get(key, "")) != "down" or not (per_stage and layers):
        return
    if draft.get("parallel.vpp", 1) > 1:
        stages = -(-layers // per_stage) // pp
        draft.set("parallel.vpp", max(1, stages), key, document)


def _precision(draft: Recipe, document: Document) -> None:
    draft.set("training.precision", "bf16")
    for key, recipe in (
        ("fp8.enabled", "fp8.recipe_name"),
        ("model.backend.te_fp8.recipe",) * 2,
    ):
        value = document.get(key)
        if value is None or written(value) == "false":
            continue
        draft.set("training.precision", "fp8", key, document)
        name = written(document.get(recipe, "tensorwise"))
        if name in SCALING:
            draft.set("megatron.fp8_scaling", SCALING[name], recipe, document)
        else:
            draft.lose(document, recipe, name, "scales for blocks of a tensor")
    gather = "fp8.enable_fsdp_float8_all_gather"
    if draft.is_on(document, gather):
        draft.set("megatron.fp8_param_gather", True, gather, document)


def _sharding(draft: Recipe, document: Document) -> None:
    key = (
        "distributed.strategy"
        if "distributed.strategy" in document.entries
        else "distributed._target_"
    )
    way, where = written(document.get(key, "fsdp2")), document.place(key)
    if "fsdp" in way:
        draft.set("parallel.data_parallel", "fsdp", key, where)
    elif "ddp" in way:
        draft.set("parallel.data_parallel", "ddp", key, where)
    else:
        draft.lose(where, key, way, "fsdp2, megatron_fsdp or ddp")
    for key in ("distributed.dp_size", "distributed.dp_replicate_size"):
        value = document.get(key)
        if value is None or written(value) == "none":
            continue
        count = draft.count(document, key, 1)
        if key.endswith("dp_size"):
            draft.replicas = count
        elif count > 1:
            draft.lose(
                document,
                key,
                count,
                "copies of shards (HSDP) without the number of shards",
            )


def _kernels(draft: Recipe, document: Document) -> None:
    """Transformer Engine's modules, and compiled layers that are split, as such under FSDP2; others as PyTorch's."""
    key = "model.backend.linear"
    if written(document.get(key)) != "te":
        _plain_kernels(draft, document)
        return
    if not _sharded(draft):
        draft.set("training.framework", "megatron", key, document)
        draft.drop(*[one for one in draft.settings if one.startswith("pytorch.")])
        draft.assume("Transformer Engine's modules count as Megatron's layers")
    else:
        draft.set("training.framework", "automodel", key, document)
    said = "model.backend.dispatcher"
    deepep = document.get(said) or document.get("model.backend.enable_deepep")
    if written(deepep) in ("deepep", "true", "hybridep"):
        draft.set("megatron.moe_token_dispatcher", "flex", said, document)
        whose = "hybridep" if written(deepep) == "hybridep" else "deepep"
        draft.set("megatron.moe_flex_dispatcher_backend", whose)
    elif written(deepep) == "uccl_ep":
        draft.lose(document, said, deepep, "DeepEP's kernels")


def _plain_kernels(draft: Recipe, document: Document) -> None:
    """PyTorch's modules, compiled or not."""
    keys = ("compile.enabled", "distributed.enable_compile")
    on = [key for key in keys if key in document.entries]
    compiled = any(draft.is_on(document, key) for key in on)
    draft.set("pytorch.clip_gradients", True)
    said = on[0] if on else "compile.enabled"
    _compiled.choose(draft, compiled, said, document.place(said), FLASH)
    if draft.get("training.framework") == "megatron" and _sharded(draft):
        draft.drop(*[f"megatron.{one}" for one in _compiled.FUSED])
        draft.set("training.framework", "automodel", said, document)


def _split_adapters(draft: Recipe, document: Document) -> None:
    """Adapters beside projections that are split are DTensors, which the engine's layers are."""
    split = _sharded(draft) and draft.get("parallel.tp", 1) > 1
    adapted = any(key.startswith("peft.") for key in document.entries)
    if split and adapted and draft.get("training.framework") in _compiled.PLAIN:
        draft.drop(*[key for key in draft.settings if key.startswith("pytorch.")])
        draft.set("training.framework", "automodel")
        draft.assume("split layers with adapters count as Transformer Engine's")


def _sharded(draft: Recipe) -> bool:
    """Whether parameters lie under FSDP2."""
    return bool(draft.get("parallel.data_parallel") == "fsdp")


def _optimizer(draft: Recipe, document: Document) -> None:
    key = "optimizer._target_"
    name = str(document.get(key, "torch.optim.Adam")).rpartition(".")[2].lower()
    if name in ("adam", "adamw", "fusedadam", "flashadamw", "fusedadamw"):
        draft.set("training.optimizer", "adam", key, document)
    elif name in ("muon", "sgd"):
        draft.set("training.optimizer", name, key, document)
    else:
        draft.lose(document, key, name, "Adam, SGD or Muon")


def _adapters(draft: Recipe, document: Document) -> None:
    """[adapter] where the engine takes it: Megatron's layers, alone or under FSDP2."""
    said = next((key for key in document.entries if key.startswith("peft.")), None)
    if said is None:
        return
    key = "peft._target_" if "peft._target_" in document.entries else said
    if not _compiled.has_adapters(draft):
        what = "adapters beside quantized layers or latent attention, compiled"
        draft.lose(document.place(key), "peft", "adapters", what)
        return
    _adapter.lora(draft, document, _adapter.words_of("automodel"), key)
    other = "peft.use_dora"
    if draft.is_on(document, other):
        draft.lose(document, other, "true", _adapter.LOST)
    left, strange = targets_of(tuple(document.get("peft.exclude_modules", ())))
    kept = [one for one in draft.get("adapter.targets", ()) if one not in left]
    if strange:
        expected = "adapters of attention and feed-forward"
        draft.lose(document, "peft.exclude_modules", ", ".join(strange), expected)
    elif left and kept:
        draft.set("adapter.targets", kept, "peft.exclude_modules", document)


BACKEND = "model.backend"


def _choose(draft: Recipe, document: Document) -> None:
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


def _layers(draft: Recipe, document: Document) -> None:
    """Compiled layers, and how adapters are composed (components/_peft/lora.py)."""
    key = "distributed.enable_compile"
    if draft.is_on(document, key):
        draft.set("pytorch.compiled_layers", True, key, document)
    if draft.get("adapter.kind", "none") != "none":
        draft.set("adapter.scaled", "inner")
        key = "peft.dropout_position"
        position = str(document.get(key, "post"))
        draft.set("adapter.dropout_position", position, key, document)


def _fsdp(draft: Recipe, document: Document) -> None:
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
    explicit = draft.is_on(document, PREFETCH)
    if explicit and frees and not (staged or experts_of(draft)):
        # FSDP2Config; its parallelizer of experts has none (apply_fsdp2_sharding_recursively).
        for way, depth in (("forward", 1), ("backward", 2)):
            key = f"distributed.fsdp2_{way}_prefetch_depth"
            value = draft.typed(document, key, "whole", depth)
            draft.set(f"pytorch.{way}_prefetch", value, key, document)


def _attention(draft: Recipe, document: Document) -> None:
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


def _loss(draft: Recipe, document: Document) -> None:
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


def _adam(draft: Recipe, document: Document) -> None:
    """One kernel for many tensors in Transformer Engine's FusedAdam, with moments in fp32, or where asked for."""
    key, fused = "optimizer._target_", "optimizer.fused"
    engine = "transformer_engine" in str(document.get(key, ""))
    one = engine or draft.is_on(document, fused)
    draft.set("pytorch.fused_optimizer", one, key, document)
    if engine:
        draft.set("pytorch.wide_moments", True, key, document)


def _experts(draft: Recipe, document: Document) -> None:
    """Shared experts on a stream of their own; the benchmark's gate deals experts in turn."""
    draft.set("megatron.moe_shared_expert_overlap", True)
    key = f"{BACKEND}.fake_balanced_gate"
    if draft.is_on(document, key):
        draft.set("parallel.routing", "consecutive", key, document)
