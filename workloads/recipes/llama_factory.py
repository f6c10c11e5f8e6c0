"""LLaMA-Factory's YAML: Hugging Face's trainer with defaults and words of its own (src/llamafactory/hparams)."""

from __future__ import annotations

from pathlib import Path

from prestep.workloads.recipes import hugging_face
from prestep.workloads.recipes._documents import Document, Entry
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import written

#: How people know such a recipe.
LOOKS = "YAML with stage and finetuning_type, template or cutoff_len"
RULES = Path(__file__).with_suffix(".toml")
BESIDE = hugging_face.BESIDE
OWN = {"finetuning_type", "template", "cutoff_len", "lora_target"}
STAGES = ("pt", "sft")
#: Its words for keys of Hugging Face's.
WORDS = {"lora_rank": "lora_r", "lora_target": "lora_target_modules"}
LENGTH = 2048  # cutoff_len where nothing is said (data_args.py)


def recognise(document: Document) -> bool:
    keys = document.sections()
    return document.kind == "yaml" and "stage" in keys and bool(OWN & keys)


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the file says, as Hugging Face's keys, over LLaMA-Factory's defaults."""
    draft = Recipe("llama_factory", str(document.path))
    entries = {WORDS.get(key, key): one for key, one in document.entries.items()}
    _method(draft, document, entries)
    if document.get("cutoff_len") is None:
        entries["cutoff_len"] = Entry(LENGTH)
        draft.assume(f"cutoff_len is not said: {LENGTH}, the trainer's default")
    off = written(document.get("disable_gradient_checkpointing")) == "true"
    if "gradient_checkpointing" not in entries:
        entries["gradient_checkpointing"] = Entry(not off)
        if not off:
            draft.assume("gradient checkpointing, which the trainer turns on")
    return hugging_face.in_words(draft, document, entries, beside, RULES)


def _method(draft: Recipe, document: Document, entries: dict[str, Entry]) -> None:
    """What is trained, and by which loss."""
    key = "finetuning_type"
    way = written(document.get(key, "lora"))
    line = document.entries[key].line if key in document.entries else 0
    entries["use_peft"] = Entry(way == "lora", line)
    if way == "lora":
        entries.setdefault("lora_r", Entry(8))
        entries.setdefault("lora_target_modules", Entry("all"))
    elif way != "full":
        draft.lose(document, key, shown(way), "another way than full or lora")
    stage = written(document.get("stage"))
    if stage not in STAGES:
        what = "another training than that of the next token"
        draft.lose(document, "stage", shown(stage), what)
