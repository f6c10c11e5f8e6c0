"""axolotl's YAML: Hugging Face's trainer by words of its own."""

from __future__ import annotations

from pathlib import Path

from prestep.workloads.recipes import hugging_face
from prestep.workloads.recipes._documents import Document, Entry
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import written

#: How people know such a recipe.
LOOKS = "YAML with base_model and sequence_len or micro_batch_size"
RULES = Path(__file__).with_suffix(".toml")
BESIDE = hugging_face.BESIDE
#: Its words for keys of Hugging Face's.
WORDS = {
    "base_model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "optimizer": "optim",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fsdp_version": "fsdp_config.fsdp_version",
    "tensor_parallel_size": "tp_size",
}
ADAPTERS = ("lora", "qlora")


def recognise(document: Document) -> bool:
    keys = document.sections()
    own = {"sequence_len", "micro_batch_size", "sample_packing", "num_epochs"}
    return document.kind == "yaml" and "base_model" in keys and bool(own & keys)


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the file says, as Hugging Face's keys."""
    draft = Recipe("axolotl", str(document.path))
    entries = _words(draft, document)
    hugging_face.in_words(draft, document, entries, beside, RULES)
    _layout(draft, document)
    return draft


def _words(draft: Recipe, document: Document) -> dict[str, Entry]:
    """Hugging Face's keys for those of axolotl's; others as they are."""
    entries = {
        WORDS.get(_sharding(key), _sharding(key)): entry
        for key, entry in document.entries.items()
    }
    if any(key.startswith("fsdp_config.") for key in entries):
        entries.setdefault("fsdp", Entry("full_shard"))
    adapter = written(document.get("adapter", "none"))
    line = document.entries["adapter"].line if "adapter" in document.entries else 0
    entries["use_peft"] = Entry(adapter in ADAPTERS, line)
    if adapter not in (*ADAPTERS, "none", "null", "empty"):
        draft.lose(document, "adapter", shown(adapter), "another adapter than LoRA")
    if adapter == "qlora" and document.get("load_in_4bit") is None:
        entries["load_in_4bit"] = Entry(True, line)
        entries.setdefault("bnb_4bit_use_double_quant", Entry(True, line))
    if written(document.get("lora_target_linear")) == "true":
        line = document.entries["lora_target_linear"].line
        entries["lora_target_modules"] = Entry("all-linear", line)
    offloads = written(document.get("gradient_checkpointing")) == "offload"
    if offloads:
        entries["gradient_checkpointing"] = Entry(True)
        key = "gradient_checkpointing"
        draft.lose(document, key, "offload", "inputs in the host's memory")
    return entries


def _sharding(key: str) -> str:
    """Keys of FSDP, which accelerate writes with fsdp_ before them."""
    section, _, name = key.partition(".")
    if section == "fsdp_config" and name and not name.startswith("fsdp_"):
        return f"fsdp_config.fsdp_{name}"
    return key


def _layout(draft: Recipe, document: Document) -> None:
    """Shards, their copies, and parts of sequences."""
    for key, ours in (
        ("context_parallel_size", "parallel.cp"),
        ("expert_parallel_size", "parallel.ep"),
        ("dp_shard_size", "parallel.fsdp_shards"),
    ):
        count = draft.count(document, key)
        if count and count > 1:
            draft.set(ours, count, key, document)
    copies = draft.count(document, "dp_replicate_size", 1)
    shards = draft.get("parallel.fsdp_shards")
    if shards:
        parts = copies * shards // draft.get("parallel.cp", 1)
        draft.replicas = max(1, parts)
