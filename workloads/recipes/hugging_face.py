"""Hugging Face's files: TrainingArguments (YAML or JSON), accelerate's and FSDP's YAML, and a model's config.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.workloads.recipes import (
    _adapter,
    _companions,
    _compiled,
    _models,
    deepspeed,
)
from prestep.workloads.recipes import _hugging_face_engine as _engine
from prestep.workloads.recipes._documents import Document, Entry, read_json, read_yaml
from prestep.workloads.recipes._reading import Recipe
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
#: Who chooses the rest of a job for a model.
INIT = "prestep init --model config.json writes a job that fits"
#: Keys of trainers on top of it, which have a format of their own.
OTHERS = {"stage", "base_model"}
#: Keys that pack several documents into a sample.
PACKING = ("packing", "sample_packing", "padding_free", "neat_packing")


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
    draft = Recipe("hugging_face", str(document.path))
    of_files(draft, document, beside, rules(RULES))
    return draft


def in_words(
    draft: Recipe,
    document: Document,
    entries: dict[str, Entry],
    beside: Sequence[Document],
    own: Path,
) -> Recipe:
    """What a file of a trainer on top of it says, as Hugging Face's keys; ``own`` has the rules for other keys."""
    said = replace(document, entries=entries)
    of_files(draft, said, beside, (*rules(own), *rules(RULES)))
    return draft


def of_files(
    draft: Recipe,
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
    plain = [one for one in files if one not in engines + configs]
    said = _together(document, [*plain, *_named_launch(draft, document, plain)])
    alone = document in configs and not said.entries and not engines
    if alone:
        said = _without_job(draft, said)
    draft.read(said, listed)
    engines = _engines(draft, said, engines)
    _model(draft, said, configs)
    _length(draft, said, f"; {INIT}" if alone else "")
    _batch(draft, said, engines)
    _options(draft, said)
    _engine.choose(draft, said, engines)
    _adapters(draft, said)
    if draft.get("training.framework") == "deepspeed":
        _engine.around_modules(draft, said)
    _compiled.stand_in(draft)
    _engine.liger(draft, said)
    _engine.settle_zero3(draft, said)
    _four_bits(draft, said)
    if draft.get("parallel.offload"):
        deepspeed.settle_offload(draft)
    _compiled.offload(draft, said, _engine.OFFLOAD)
    _engine.root(draft)
    _engine.experts(draft, said)
    _world(draft, said)


def _without_job(draft: Recipe, said: Document) -> Document:
    """A job for a model's config.json that comes alone: few models fit with the Trainer's fp32 and 8 samples."""
    draft.assume(
        f"a model's config.json alone is trained in bf16 with micro batch 1 (--set training.micro_batch=N); {INIT}"
    )
    job = {"bf16": Entry(True), "per_device_train_batch_size": Entry(1)}
    return replace(said, entries=job)


def _named_launch(
    draft: Recipe, document: Document, plain: Sequence[Document]
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


def _engines(
    draft: Recipe, said: Document, given: Sequence[Document]
) -> list[Document]:
    """DeepSpeed's file: the one that was given, or that `deepspeed` or accelerate names and that lies beside."""
    for key in ("deepspeed", "deepspeed_config.deepspeed_config_file"):
        if isinstance(said.get(key), str):
            return _companions.named(draft, said, key, given, read_json)
    return list(given)


def _model(draft: Recipe, said: Document, configs: list[Document]) -> None:
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


def _length(draft: Recipe, said: Document, more: str) -> None:
    key = next((name for name in LENGTHS if said.get(name)), "")
    if not key:
        _models.missing_length(draft, LENGTHS[0], str(said.path), more)
        return
    draft.set("training.seq_len", draft.count(said, key), key, said)
    packs = next((name for name in PACKING if written(said.get(name)) == "true"), "")
    if packs and (packs != "packing" or _engine.asks_for_flash(said)):
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


def _batch(draft: Recipe, said: Document, engines: Sequence[Document]) -> None:
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


def _options(draft: Recipe, said: Document) -> None:
    """Number format, checkpointing and tensor parallelism."""
    _format(draft, said)
    if draft.is_on(said, "gradient_checkpointing"):
        draft.set("training.recompute", "full", "gradient_checkpointing", said)
    if int(draft.typed(said, "tp_size", "whole", 1) or 1) > 1:
        draft.set("parallel.tp", draft.count(said, "tp_size"), "tp_size", said)


#: Keys that quantize scales again: TRL's, transformers' and axolotl's.
NESTED = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant")


def _four_bits(draft: Recipe, said: Document) -> None:
    """Frozen weights in NF4 beside adapters (QLoRA), where every rank has them whole."""
    key = "load_in_4bit"
    if not draft.is_on(said, key):
        return
    kind = written(said.get("bnb_4bit_quant_type", "nf4"))
    plain = draft.get("training.framework") == "pytorch-eager"
    whole = draft.get("parallel.data_parallel") not in ("fsdp", "zero2", "zero3")
    adapted = draft.get("adapter.kind", "none") != "none"
    if kind != "nf4" or not (plain and whole and adapted):
        what = "weights in 4 bits, but for NF4 beside adapters of whole plain modules"
        draft.lose(said, key, "true", what)
        return
    nested = any(draft.is_on(said, name) for name in NESTED)
    draft.set("adapter.base", "nf4-double" if nested else "nf4", key, said)
    draft.assume(
        "weights in four bits are written out by kernels as fast as their bytes (a guess: nobody published their times)"
    )


def _format(draft: Recipe, said: Document) -> None:
    made, key = "fp32", "bf16"
    for name in ("bf16", "fp16"):
        chosen = name == "bf16" and written(said.get(name)) == "auto"
        if chosen or draft.is_on(said, name):
            made, key = name, name
    mixed = written(said.get("mixed_precision", "no"))
    if made == "fp32" and mixed in ("bf16", "fp16", "fp8"):
        made, key = mixed, "mixed_precision"
    stored = next((n for n in ("torch_dtype", "dtype") if said.get(n)), "")
    if made == "fp32" and written(said.get(stored)) in ("bfloat16", "bf16"):
        made, key = "bf16", stored
    if made == "fp32" and draft.is_on(said, "tf32"):
        made, key = "tf32", "tf32"
    draft.set("training.precision", made, key, said)


def _adapters(draft: Recipe, said: Document) -> None:
    """[adapter] in PyTorch's own modules."""
    named = next((key for key in ("use_peft", "lora_r") if said.get(key)), "")
    if not named or written(said.get("use_peft", "true")) == "false":
        return
    where = said.place(named)
    if draft.get("training.framework") == "deepspeed":
        stage = draft.get("parallel.data_parallel")
        way = {"zero3": "fsdp", "zero2": "zero1"}.get(stage, stage)
        draft.set("parallel.data_parallel", way, named, where)
        _compiled.choose(draft, False, named, where, _engine.kernel_of(said))
        _engine.modules(draft, said)
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
    _adapter.lora(draft, said, _adapter.words_of("peft"), named)
    if draft.get("training.precision") in ("bf16", "fp16"):
        draft.set("adapter.fp32", True)  # PEFT's autocast_adapter_dtype
    if draft.get("pytorch.fsdp") == "1":
        draft.assume(
            "FSDP's flat parameters hold adapters and frozen weights (use_orig_params)"
        )


def _world(draft: Recipe, said: Document) -> None:
    """Processes and machines that accelerate starts."""
    draft.gpus = draft.count(said, "num_processes")
    draft.hosts = draft.count(said, "num_machines")
