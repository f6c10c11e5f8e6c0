"""Engines of Hugging Face's trainers: DDP, FSDP or DeepSpeed around PyTorch's modules, as their files ask for them."""

from __future__ import annotations

from dataclasses import replace

from prestep.workloads.frameworks._pytorch_model import missing_parts
from prestep.workloads.frameworks.deepspeed_eager import FUSED_LOSS, without_hooks
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from prestep.workloads.recipes import _compiled, _models, deepspeed
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe
from prestep.workloads.recipes._rules import written

#: accelerate's names of sharding; FSDP 1's numbers of ShardingStrategy among them.
WAYS = {
    "full_shard": "fsdp",
    "1": "fsdp",
    "shard_grad_op": "zero2",
    "2": "zero2",
    "no_shard": "ddp",
    "3": "ddp",
}


#: Values that ask for FlashAttention, which takes the lengths of documents.
FLASH = (
    *("flash_attention_2", "flash_attention_3", "fa2", "true"),
    *(f"kernels-community/flash-attn{n}" for n in ("", "2", "3")),
)
#: One switch for all: transformers', TRL's, and LLaMA-Factory's.
LIGER = ("use_liger_kernel", "use_liger", "enable_liger_kernel")
#: What it replaces where no configuration says otherwise (liger_kernel/transformers/monkey_patch.py).
USUAL_PARTS = ("rope", "rms_norm", "glu", "fused_linear_cross_entropy")
#: Keys of transformers' liger_kernel_config, and of axolotl's plug-in, by part.
PARTS = {
    "rope": ("liger_kernel_config.rope", "liger_rope"),
    "rms_norm": ("liger_kernel_config.rms_norm", "liger_rms_norm"),
    "glu": ("liger_kernel_config.swiglu", "liger_glu_activation", "liger_swiglu"),
    "cross_entropy": ("liger_kernel_config.cross_entropy", "liger_cross_entropy"),
    "fused_linear_cross_entropy": (
        "liger_kernel_config.fused_linear_cross_entropy",
        "liger_fused_linear_cross_entropy",
    ),
}
#: axolotl's, which replaces layer norms.
LAYER_NORMS = "liger_layer_norm"
BESIDE_BACKWARD = "gradients are reduced beside backward (overlap_comm)"


OFFLOAD = "fsdp_config.fsdp_offload_params"
#: Keys that name how experts run: axolotl's, and TRL's for from_pretrained; values of theirs that are simulated.
EXPERTS = ("experts_implementation", "model_init_kwargs.experts_implementation")
KINDS_OF_EXPERTS = {"eager": "loop", "grouped_mm": "grouped"}
OFF = ("empty", "null", "none", "false")


def choose(draft: Recipe, said: Document, engines: list[Document]) -> None:
    """DeepSpeed, FSDP or DDP; eager modules of PyTorch, or compiled ones."""
    kind = written(said.get("distributed_type", "")).rpartition(".")[2]
    if (
        engines
        or kind == "deepspeed"
        or any(k.startswith("deepspeed_config.") for k in said.entries)
    ):
        precision = draft.get("training.precision")
        for one in engines:
            deepspeed.apply(draft, one)
        if not engines:
            deepspeed.apply(draft, _of_accelerate(said))
        if precision != "fp32":
            draft.set("training.precision", precision)
        return
    _sharding(draft, said, kind)
    compiled = draft.is_on(said, "torch_compile")
    backend = next(
        (k for k in ("dynamo_backend", "dynamo_config.dynamo_backend") if said.get(k)),
        "",
    )
    inductor = written(said.get(backend)) == "inductor"
    where = said.place("torch_compile")
    kernel = kernel_of(said)
    _compiled.choose(draft, compiled or inductor, "torch_compile", where, kernel)
    if draft.get("training.framework") == "pytorch-eager":
        modules(draft, said)
    if draft.get("training.framework") != "megatron":
        draft.set("pytorch.clip_gradients", True)
        if (
            draft.get("training.precision") == "bf16"
            and draft.get("parallel.data_parallel") == "fsdp"
        ):
            draft.set("pytorch.master_weights", True)


def around_modules(draft: Recipe, said: Document) -> None:
    """DeepSpeed around transformers' modules, where they are simulated."""
    way = draft.get("parallel.data_parallel")
    model = _models.bundled(draft)
    parts = bool(getattr(model, "experts", None)) or bool(missing_parts(model))
    adam = draft.get("training.optimizer", "adamw") in ("adam", "adamw")
    bf16 = draft.get("training.precision") == "bf16"
    split = any(draft.get(f"parallel.{axis}", 1) > 1 for axis in ("tp", "cp"))
    if parts or split or not (adam and bf16) or way not in ("zero1", "zero2", "zero3"):
        return
    draft.assumed.remove(deepspeed.MEGATRONS)
    draft.set("training.framework", "deepspeed-eager")
    draft.assume(BESIDE_BACKWARD)
    if asks_for_flash(said):
        draft.set("pytorch.attention", "flash2")
    modules(draft, said)


def settle_zero3(draft: Recipe, said: Document) -> None:
    """FSDP2 in place of ZeRO 3 where its hooks are not simulated: for offloaded parameters, other models and losses."""
    way = draft.get("parallel.data_parallel")
    if draft.get("training.framework") != "deepspeed-eager" or way != "zero3":
        return
    file = draft.get("model.file")
    place = None if file is None else str(said.path.parent / file)
    section = Model(name=draft.get("model.name"), file=place)
    known = section.name is not None or place is not None
    others = [*without_hooks(load_model(section))] if known else []
    if FUSED_LOSS in draft.get("pytorch.liger", ()):
        others.append(FUSED_LOSS)
    if draft.get("parallel.offload", "none") == "parameters":
        others.append("offloaded parameters")
    if not others:
        return
    draft.assumed.remove(BESIDE_BACKWARD)
    draft.set("training.framework", "pytorch-eager")
    draft.set("parallel.data_parallel", "fsdp", "zero_optimization.stage")
    draft.set("pytorch.reduce_every_microbatch", True)  # as DeepSpeed does
    draft.set("pytorch.master_weights", True)
    draft.set("pytorch.clip_gradients", True)
    draft.assume(
        f"ZeRO-3 beside {', '.join(others)} counts as PyTorch's FSDP2: steps measured without, which the host "
        "bounds, took 1.3 to 5 times as long"
    )


def modules(draft: Recipe, said: Document) -> None:
    """Layers as transformers writes them, and attention as it is asked for."""
    if draft.get("training.precision") in ("bf16", "fp16"):
        draft.set("pytorch.modules", "transformers")
    if not asks_for_flash(said):
        draft.assume(_compiled.REASON)


def experts(draft: Recipe, said: Document) -> None:
    """Experts as experts_implementation has them; where nobody says it, transformers' release and the GPU decide."""
    if not _compiled.experts_of(draft):
        return
    key = next((one for one in EXPERTS if written(said.get(one)) not in OFF), "")
    named = written(said.get(key)) if key else ""
    modules = draft.get("pytorch.modules") == "transformers"
    if key and modules and named in KINDS_OF_EXPERTS:
        draft.set("pytorch.experts", KINDS_OF_EXPERTS[named], key, said)
    elif key:
        draft.lose(said, key, named, "experts by other kernels, or in other layers")
    elif modules:
        draft.assume(
            'transformers 5, which groups experts (pytorch.transformers = "4": they run in turn)'
        )


def asks_for_flash(said: Document) -> str:
    """Which key asks for FlashAttention 2, in words; "" where PyTorch chooses."""
    asked = ("attn_implementation", "flash_attention", "flash_attn", "padding_free")
    keys = [key for key in asked if written(said.get(key)) in FLASH]
    return f"for which {keys[0]} asks" if keys else ""


def kernel_of(said: Document) -> tuple[str, str]:
    """The kernel of attention that is asked for, and by what."""
    reason = asks_for_flash(said)
    return ("flash2" if reason else "", reason)


def _of_accelerate(said: Document) -> Document:
    """accelerate's words for DeepSpeed's keys."""
    words = {
        "zero_stage": "zero_optimization.stage",
        "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
        "offload_param_device": "zero_optimization.offload_param.device",
    }
    entries = {
        theirs: said.entries[f"deepspeed_config.{ours}"]
        for ours, theirs in words.items()
        if f"deepspeed_config.{ours}" in said.entries
    }
    return replace(said, entries=entries, kind="json")


def _sharding(draft: Recipe, said: Document, kind: str) -> None:
    words = said.get("fsdp")
    named = written(words).replace(",", " ").split() if isinstance(words, str) else []
    named += [written(word) for word in words] if isinstance(words, list) else []
    if "offload" in named:
        draft.lose(said, "fsdp", "offload", "parameters in the host's memory")
    key = "fsdp_config.fsdp_sharding_strategy"
    strategy = written(said.get(key, ""))
    if strategy != "empty":
        _fsdp(draft, said, strategy, key)
    elif kind == "fsdp" or named:
        way = next((name for name in named if name in WAYS), "full_shard")
        _fsdp(draft, said, way, "fsdp")
    else:
        draft.set("parallel.data_parallel", "ddp", "distributed_type", said)


def _fsdp(draft: Recipe, said: Document, strategy: str, key: str) -> None:
    """FSDP by one of its strategies, which a key names."""
    way = WAYS.get(strategy)
    if way in ("fsdp", "ddp"):
        draft.set("parallel.data_parallel", way, key, said)
    elif way == "zero2":
        draft.set("parallel.data_parallel", "fsdp", key, said)
        draft.set("parallel.reshard_after_forward", False, key, said)
    else:
        draft.lose(said, key, strategy, "FULL_SHARD, SHARD_GRAD_OP or NO_SHARD")
    if way != "ddp":
        version = written(said.get("fsdp_config.fsdp_version", 1))
        draft.set("pytorch.fsdp", "2" if version == "2" else "1", "fsdp_version")
    _reshard(draft, said)
    draft.is_on(said, OFFLOAD)


def _reshard(draft: Recipe, said: Document) -> None:
    for key in (
        "fsdp_config.fsdp_reshard_after_forward",
        "fsdp_config.reshard_after_forward",
    ):
        if written(said.get(key)) == "false":
            draft.set("parallel.reshard_after_forward", False, key, said)
    key = "fsdp_config.fsdp_activation_checkpointing"
    if draft.is_on(said, key):
        draft.set("training.recompute", "full", key, said)


def root(draft: Recipe) -> None:
    """accelerate gives fully_shard of the root what it gives that of blocks (fsdp2_prepare_model)."""
    frees = draft.get("parallel.reshard_after_forward") is not False
    if draft.get("pytorch.fsdp") == "2" and _compiled.has_fsdp2_root(draft) and frees:
        draft.set("parallel.reshard_root", True)


def liger(draft: Recipe, said: Document) -> None:
    """The parts that are Liger's, where the layers are transformers'; elsewhere they are not simulated."""
    parts = _liger_parts(draft, said)
    layer_norms = _models.part(draft, "norm") == "layer"
    if layer_norms and draft.is_on(said, LAYER_NORMS):
        what = "layer norms by Liger"
        draft.lose(said, LAYER_NORMS, "true", what)
    if not parts:
        return
    key = next(iter(parts.values()))
    if layer_norms:
        draft.assume(f"{key}: Liger has nothing for models with layer norms (GPT-2)")
        return
    split = any(draft.get(f"parallel.{axis}", 1) > 1 for axis in ("tp", "cp", "ep"))
    if draft.get("pytorch.modules") != "transformers" or split:
        what = (
            "Liger's kernels beside other layers than transformers', or parts of them"
        )
        draft.lose(said, key, "true", what)
        return
    if "fused_linear_cross_entropy" in parts:
        parts.pop("cross_entropy", None)
    draft.set("pytorch.liger", tuple(parts), key, said)


def _liger_parts(draft: Recipe, said: Document) -> dict[str, str]:
    """Parts of a model that are Liger's, with the key that says so."""
    whole = next((key for key in LIGER if draft.is_on(said, key)), "")
    found = dict.fromkeys(USUAL_PARTS, whole) if whole else {}
    for name, keys in PARTS.items():
        for key in keys:
            on = draft.typed(said, key, "truth")
            if on:
                found[name] = key
            elif on is False:
                found.pop(name, None)
    return found
