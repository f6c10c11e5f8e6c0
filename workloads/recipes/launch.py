"""Shell scripts that start a trainer with Hugging Face's arguments: transformers' examples, TRL, DeepSpeed-Chat."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prestep.workloads.arguments.files import read_shell
from prestep.workloads.recipes import hugging_face, megatron, mlperf
from prestep.workloads.recipes._documents import Document, Entry
from prestep.workloads.recipes._reading import Recipe
from prestep.workloads.recipes._rules import written

#: How people know such a recipe.
LOOKS = "a script that passes --per_device_train_batch_size or --model_name_or_path"
RULES = Path(__file__).with_suffix(".toml")
BESIDE = hugging_face.BESIDE
OWN = r"--(per_device_train_batch_size|model_name_or_path)\b"
#: Words of programs -> Hugging Face's.
WORDS = {
    "max_seq_len": "max_length",
    "model_name": "model_name_or_path",
    "actor_model_name_or_path": "model_name_or_path",
    "nproc_per_node": "num_processes",
    "num_gpus": "num_processes",
    "nnodes": "num_machines",
    "num_nodes": "num_machines",
    "lora_dim": "lora_r",
    "config_file": "accelerate_config",
}
#: Words that end a command.
ENDS = ("&", "&>", ">", ">>", "2>&1", "-m")
#: DeepSpeed-Chat's (applications/DeepSpeed-Chat/training/*/main.py): a switch for DeepSpeed, and a stage beside it.
CHAT = {"dtype": "fp16", "max_length": 512, "per_device_train_batch_size": 16}


def recognise(document: Document) -> bool:
    return (
        document.kind == "shell"
        and bool(re.search(OWN, document.text))
        and not megatron.recognise(document)
        and not mlperf.recognise(document)
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the script passes, as Hugging Face's keys; further files are DeepSpeed's, accelerate's, a config.json."""
    draft = Recipe("launch", str(document.path))
    given = read_shell(document.text, str(document.path))
    entries = {
        _word(name.replace("-", "_")): Entry(_value(values))
        for name, values in given.items()
    }
    if entries.get("deepspeed", Entry(None)).value is True:
        _chat(draft, entries)
    rank = entries.get("lora_r")
    if rank is not None:
        entries["use_peft"] = Entry(written(rank.value) != "0")
    return hugging_face.in_words(draft, document, entries, beside, RULES)


def _word(name: str) -> str:
    return WORDS.get(name, name)


def _value(values: list[str]) -> Any:
    """One word, or several, up to the program or the end of the command; a name without words is a switch."""
    kept: list[str] = []
    for value in values:
        if value.endswith(".py") or value in ENDS:
            break
        kept.append(value)
    return " ".join(kept) if kept else True


def _chat(draft: Recipe, entries: dict[str, Entry]) -> None:
    """`--deepspeed --zero_stage N --dtype bf16 --offload` of DeepSpeed-Chat, as accelerate says them."""
    del entries["deepspeed"]
    for key, usual in CHAT.items():
        if key not in entries:
            entries[key] = Entry(usual)
            draft.assume(f"{key} is not said: {usual}, DeepSpeed-Chat's default")
    kind = written(entries.pop("dtype").value)
    entries["bf16" if kind == "bf16" else "fp16"] = Entry(True)
    stage = entries.pop("zero_stage", Entry("0"))
    entries["deepspeed_config.zero_stage"] = stage
    if entries.pop("offload", Entry(False)).value is True:
        entries["deepspeed_config.offload_optimizer_device"] = Entry("cpu")
