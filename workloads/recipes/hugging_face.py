"""Hugging Face's files: TrainingArguments (YAML or JSON), accelerate's and FSDP's YAML, and a model's config.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.workloads.frameworks._pytorch_model import missing_parts
from prestep.workloads.frameworks.deepspeed_eager import FUSED_LOSS, without_hooks
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from prestep.workloads.recipes import (
    _adapter,
    _companions,
    _compiled,
    _models,
    deepspeed,
)
from prestep.workloads.recipes._documents import Document, read_json, read_yaml
from prestep.workloads.recipes._liger import liger
from prestep.workloads.recipes._reading import Draft, Recipe
from prestep.workloads.recipes._rules import Rule, rules, written

#: How people know such a recipe.
LOOKS = "YAML or JSON with per_device_train_batch_size, distributed_type, or a config.json with model_type"
RULES = Path(__file__).with_suffix(".toml")
#: Files that it reads beside its own, as trainers on top of it do.
BESIDE = _companions.PARTS
OWN = {
    "per_device_train_batch_size",
    "distributed_type",
    "gradient_checkpointing",
    "fsdp_config",
    "model_name_or_path",
}
LENGTHS = ("max_seq_length", "max_length", "block_size", "cutoff_len", "sequence_len")
#: accelerate's names of sharding; FSDP 1's numbers of ShardingStrategy among them.
WAYS = {
    "full_shard": "fsdp",
    "1": "fsdp",
    "shard_grad_op": "zero2",
    "2": "zero2",
    "no_shard": "ddp",
    "3": "ddp",
}
#: Names of `optim` (transformers' OptimizerNames) beside Adam's: bitsandbytes' and torchao's states of few bits.
OPTIMIZERS = {
    "adamw_bnb_8bit": "adamw8bit",
    "adamw_8bit": "adamw8bit",
    "adamw_torch_8bit": "adamw8bit",
    "adamw_torch_4bit": "adamw4bit",
    "lion_32bit": "lion",
    "paged_adamw_8bit": "adamw8bit",
    "adamw_anyprecision": "adamw",
    "adafactor": "adafactor",
    "muon": "muon",
    "sgd": "sgd",
}
ADAM = (
    *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw"),
    *("paged_adamw_32bit", "paged_adamw", "adamw_torch_npu_fused"),
)
#: Keys of trainers on top of it, which have a format of their own.
OTHERS = {"stage", "base_model"}
#: Values that ask for FlashAttention, which takes the lengths of documents.
FLASH = (
    *("flash_attention_2", "flash_attention_3", "fa2", "true"),
    *(f"kernels-community/flash-attn{n}" for n in ("", "2", "3")),
)
#: Keys that pack several documents into a sample.
PACKING = ("packing", "sample_packing", "padding_free", "neat_packing")
BESIDE_BACKWARD = "gradients are reduced beside backward (overlap_comm)"
OFFLOAD = "fsdp_config.fsdp_offload_params"
#: Words of PEFT's adapters in TRL's ModelConfig; PEFT's own targets of Llama and its like.
PEFT = _adapter.Words(
    "lora_r", "lora_target_modules", "lora_dropout", "", 16, ("q_proj", "v_proj")
)


def recognise(document: Document) -> bool:
    if document.kind == "json" and "model_type" in document.entries:
        return True
    known = len(OWN & document.sections())
    return (
        document.kind in ("yaml", "json")
        and known > 0
        and not OTHERS & document.sections()
        and not deepspeed.recognise(document)
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What all files of a job say together: one of each kind."""
    draft = Draft("hugging_face", str(document.path))
    of_files(draft, document, beside, rules(RULES))
    return draft.recipe()


def of_files(
    draft: Draft,
    document: Document,
    beside: Sequence[Document],
    listed: Iterable[Rule],
) -> None:
    """What TrainingArguments and accelerate's keys come to, with DeepSpeed's file and a model's config.json.

    Trainers on top of them have words of their own.
    """
    files = [document, *beside]
    engines = [one for one in files if deepspeed.recognise(one)]
    configs = [one for one in files if "model_type" in one.entries]
    plain = [one for one in files if one not in engines and one not in configs]
    said = _together(document, [*plain, *_named_launch(draft, document, plain)])
    draft.read(said, listed)
    engines = _engines(draft, said, engines)
    _model(draft, said, configs)
    _length(draft, said)
    _batch(draft, said, engines)
    _options(draft, said)
    _engine(draft, said, engines)
    _adapters(draft, said)
    if draft.get("training.framework") == "deepspeed":
        _around_modules(draft, said)
    _compiled.stand_in(draft)
    liger(draft, said)
    _settle_zero3(draft, said)
    _four_bits(draft, said)
    if draft.get("parallel.offload"):
        deepspeed.settle_offload(draft)
    _compiled.offload(draft, said, OFFLOAD)
    _root(draft)
    _world(draft, said)


def _named_launch(
    draft: Draft, document: Document, plain: Sequence[Document]
) -> list[Document]:
    """accelerate's file that a script of arguments names, where none was given."""
    given = [one for one in plain if "distributed_type" in one.entries]
    listed = _companions.named(draft, document, "accelerate_config", given, read_yaml)
    return [one for one in listed if one not in plain]


def _together(document: Document, plain: list[Document]) -> Document:
    """The keys of several files; those of TrainingArguments come before accelerate's."""
    entries: dict[str, Any] = {}
    path = plain[0].path if plain else document.path
    for one in sorted(plain, key=lambda file: "distributed_type" not in file.entries):
        file = "" if one.path == path else str(one.path)
        entries |= {
            key: entry._replace(file=file) for key, entry in one.entries.items()
        }
    return replace(document, path=path, entries=entries, kind="yaml")


def _engines(draft: Draft, said: Document, given: Sequence[Document]) -> list[Document]:
    """DeepSpeed's file: the one that was given, or that `deepspeed` or accelerate names and that lies beside."""
    for key in ("deepspeed", "deepspeed_config.deepspeed_config_file"):
        if isinstance(said.get(key), str):
            return _companions.named(draft, said, key, given, read_json)
    return list(given)


def _model(draft: Draft, said: Document, configs: list[Document]) -> None:
    if configs:
        draft.set(
            "model.file",
            str(configs[-1].path.absolute()),
            "config.json",
            str(configs[-1].path),
        )
        return
    for key in ("model_name_or_path", "model"):
        if said.get(key):
            _models.choose(draft, said.get(key), key, said.place(key), said.path.parent)
            return
    _models.missing(draft, "nothing", "model_name_or_path", str(said.path))


def _length(draft: Draft, said: Document) -> None:
    key = next((name for name in LENGTHS if said.get(name)), "")
    if not key:
        _models.missing_length(draft, LENGTHS[0], str(said.path))
        return
    draft.set("training.seq_len", draft.count(said, key), key, said)
    packs = next((name for name in PACKING if written(said.get(name)) == "true"), "")
    if packs and (packs != "packing" or _asks_for_flash(said)):
        _models.packed(draft, packs, said.place(packs), "true")
    elif packs:
        draft.assume(
            "attention over all of a pack, as TRL has it without FlashAttention"
        )
    else:
        draft.assume(f"every sample has {key} tokens: shorter ones are padded")


#: Keys of a step's batch: the scenario's, the trainer's, its default, and DeepSpeed's.
BATCHES = (
    (
        "training.micro_batch",
        "per_device_train_batch_size",
        8,
        "train_micro_batch_size_per_gpu",
    ),
    (
        "training.grad_accumulation",
        "gradient_accumulation_steps",
        1,
        "gradient_accumulation_steps",
    ),
)


def _batch(draft: Draft, said: Document, engines: Sequence[Document]) -> None:
    """Samples of a rank; a number of DeepSpeed's file has to be the trainer's, which the trainer checks, too."""
    for ours, key, usual, theirs in BATCHES:
        count, where = draft.count(said, key), said.place(key)
        for one in engines:
            if deepspeed.said(one, theirs) is None:
                continue
            number = draft.count(one, theirs)
            if count is None:
                key, count, where = theirs, number, one.place(theirs)
            elif number not in (None, count):
                expected = f"{count}, the trainer's {key}, or auto"
                draft.wrong(one, theirs, number, expected)
        if count is None and usual > 1:
            draft.assume(f"{key} is not said: {usual}, the trainer's default")
        draft.set(ours, count or usual, key, where)


def _options(draft: Draft, said: Document) -> None:
    """Number format, checkpointing, optimizer, and what replaces kernels."""
    _format(draft, said)
    if draft.typed(said, "gradient_checkpointing", "truth", False):
        draft.set("training.recompute", "full", "gradient_checkpointing", said)
    key = "optim"
    name = written(said.get(key, "adamw_torch"))
    if name in OPTIMIZERS:
        draft.set("training.optimizer", OPTIMIZERS[name], key, said)
    elif name not in ADAM:
        draft.lose(said, key, name, "another optimizer")
    if draft.typed(said, "load_in_8bit", "truth", False):
        draft.lose(said, "load_in_8bit", "true", "weights in 8 bits")
    if int(draft.typed(said, "tp_size", "whole", 1) or 1) > 1:
        draft.set("parallel.tp", draft.count(said, "tp_size"), "tp_size", said)


#: Keys that quantize scales again: TRL's, transformers' and axolotl's.
NESTED = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant")


def _four_bits(draft: Draft, said: Document) -> None:
    """Frozen weights in NF4 beside adapters (QLoRA), where every rank has them whole."""
    key = "load_in_4bit"
    if not draft.typed(said, key, "truth", False):
        return
    kind = written(said.get("bnb_4bit_quant_type", "nf4"))
    plain = draft.get("training.framework") == "pytorch-eager"
    whole = draft.get("parallel.data_parallel") not in ("fsdp", "zero2", "zero3")
    adapted = draft.get("adapter.kind", "none") != "none"
    if kind != "nf4" or not (plain and whole and adapted):
        what = "weights in 4 bits, but for NF4 beside adapters of whole plain modules"
        draft.lose(said, key, "true", what)
        return
    nested = any(draft.typed(said, name, "truth", False) for name in NESTED)
    draft.set("adapter.base", "nf4-double" if nested else "nf4", key, said)
    draft.assume(
        "weights in four bits are written out by kernels as fast as their bytes (a guess: nobody published their times)"
    )


def _format(draft: Draft, said: Document) -> None:
    made, key = "fp32", "bf16"
    for name in ("bf16", "fp16"):
        chosen = name == "bf16" and written(said.get(name)) == "auto"
        if chosen or draft.typed(said, name, "truth", False):
            made, key = name, name
    mixed = written(said.get("mixed_precision", "no"))
    if made == "fp32" and mixed in ("bf16", "fp16", "fp8"):
        made, key = mixed, "mixed_precision"
    stored = next((n for n in ("torch_dtype", "dtype") if said.get(n)), "")
    if made == "fp32" and written(said.get(stored)) in ("bfloat16", "bf16"):
        made, key = "bf16", stored
    if made == "fp32" and draft.typed(said, "tf32", "truth", False):
        made, key = "tf32", "tf32"
    draft.set("training.precision", made, key, said)


def _engine(draft: Draft, said: Document, engines: list[Document]) -> None:
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
    compiled = draft.typed(said, "torch_compile", "truth", False)
    backend = next(
        (k for k in ("dynamo_backend", "dynamo_config.dynamo_backend") if said.get(k)),
        "",
    )
    inductor = written(said.get(backend)) == "inductor"
    where = said.place("torch_compile")
    kernel = _kernel(said)
    _compiled.choose(draft, compiled or inductor, "torch_compile", where, kernel)
    if draft.get("training.framework") == "pytorch-eager":
        _modules(draft, said)
    if draft.get("training.framework") != "megatron":
        draft.set("pytorch.clip_gradients", True)
        if (
            draft.get("training.precision") == "bf16"
            and draft.get("parallel.data_parallel") == "fsdp"
        ):
            draft.set("pytorch.master_weights", True)


def _around_modules(draft: Draft, said: Document) -> None:
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
    if _asks_for_flash(said):
        draft.set("pytorch.attention", "flash2")
    _modules(draft, said)


def _settle_zero3(draft: Draft, said: Document) -> None:
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


def _modules(draft: Draft, said: Document) -> None:
    """Layers as transformers writes them, and attention as it is asked for."""
    if draft.get("training.precision") in ("bf16", "fp16"):
        draft.set("pytorch.modules", "transformers")
    if not _asks_for_flash(said):
        draft.assume(_compiled.REASON)


def _asks_for_flash(said: Document) -> str:
    """Which key asks for FlashAttention 2, in words; "" where PyTorch chooses."""
    asked = ("attn_implementation", "flash_attention", "flash_attn", "padding_free")
    keys = [key for key in asked if written(said.get(key)) in FLASH]
    return f"for which {keys[0]} asks" if keys else ""


def _kernel(said: Document) -> tuple[str, str]:
    """The kernel of attention that is asked for, and by what."""
    reason = _asks_for_flash(said)
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


def _adapters(draft: Draft, said: Document) -> None:
    """[adapter] in PyTorch's own modules."""
    named = next((key for key in ("use_peft", "lora_r") if said.get(key)), "")
    if not named or written(said.get("use_peft", "true")) == "false":
        return
    where = said.place(named)
    if draft.get("training.framework") == "deepspeed":
        stage = draft.get("parallel.data_parallel")
        way = {"zero3": "fsdp", "zero2": "zero1"}.get(stage, stage)
        draft.set("parallel.data_parallel", way, named, where)
        _compiled.choose(draft, False, named, where, _kernel(said))
        _modules(draft, said)
        draft.set("pytorch.clip_gradients", True)
        if draft.get("training.precision") == "fp16":
            draft.set("training.precision", "bf16", named, where)
            draft.assume(
                "fp16 beside adapters counts as bf16, whose products are as fast"
            )
        draft.assume(
            f"DeepSpeed's {stage} beside adapters counts as PyTorch's {way}: frozen weights have no gradients"
        )
    if not _compiled.has_adapters(draft):
        what = "adapters beside quantized layers or latent attention, compiled"
        draft.lose(where, named, "adapters", what)
        return
    _adapter.lora(draft, said, PEFT, named)
    if draft.get("training.precision") in ("bf16", "fp16"):
        draft.set("adapter.fp32", True)  # PEFT's autocast_adapter_dtype
    if draft.get("pytorch.fsdp") == "1":
        draft.assume(
            "FSDP's flat parameters hold adapters and frozen weights (use_orig_params)"
        )


def _sharding(draft: Draft, said: Document, kind: str) -> None:
    words = said.get("fsdp")
    named = written(words).replace(",", " ").split() if isinstance(words, str) else []
    named += [written(word) for word in words] if isinstance(words, list) else []
    if "offload" in named:
        draft.lose(said, "fsdp", "offload", "parameters in the host's memory")
    key = "fsdp_config.fsdp_sharding_strategy"
    strategy = written(said.get(key, ""))
    if kind == "fsdp" or named or strategy != "empty":
        found = (
            strategy
            if strategy != "empty"
            else next((n for n in named if n in WAYS), "full_shard")
        )
        key = key if strategy != "empty" else "fsdp"
        version = written(said.get("fsdp_config.fsdp_version", 1))
        way = WAYS.get(found)
        if way in ("fsdp", "ddp"):
            draft.set("parallel.data_parallel", way, key, said)
        elif way == "zero2":
            draft.set("parallel.data_parallel", "fsdp", key, said)
            draft.set("parallel.reshard_after_forward", False, key, said)
        else:
            draft.lose(said, key, found, "FULL_SHARD, SHARD_GRAD_OP or NO_SHARD")
        if way != "ddp":
            draft.set("pytorch.fsdp", "2" if version == "2" else "1", "fsdp_version")
        _reshard(draft, said)
        draft.typed(said, OFFLOAD, "truth", False)
        return
    draft.set("parallel.data_parallel", "ddp", "distributed_type", said)


def _reshard(draft: Draft, said: Document) -> None:
    for key in (
        "fsdp_config.fsdp_reshard_after_forward",
        "fsdp_config.reshard_after_forward",
    ):
        if written(said.get(key)) == "false":
            draft.set("parallel.reshard_after_forward", False, key, said)
    key = "fsdp_config.fsdp_activation_checkpointing"
    if draft.typed(said, key, "truth", False):
        draft.set("training.recompute", "full", key, said)


def _root(draft: Draft) -> None:
    """accelerate gives fully_shard of the root what it gives that of blocks (fsdp2_prepare_model)."""
    frees = draft.get("parallel.reshard_after_forward") is not False
    if draft.get("pytorch.fsdp") == "2" and _compiled.has_fsdp2_root(draft) and frees:
        draft.set("parallel.reshard_root", True)


def _world(draft: Draft, said: Document) -> None:
    """Processes and machines that accelerate starts."""
    draft.gpus = draft.count(said, "num_processes")
    draft.hosts = draft.count(said, "num_machines")
