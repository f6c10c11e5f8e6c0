"""Adapters of a recipe as keys of a scenario."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.job.adapter import targets_of
from workloads.models.model import MODELS, read_model
from workloads.recipes._documents import Document
from workloads.recipes._reading import Draft, shown

LOST = "frozen weights and adapters (LoRA)"
OFF = ("none", "null", "false")


@dataclass(frozen=True)
class Words:
    """What a format calls an adapter's keys, and what it takes where they are not said."""

    rank: str
    targets: str
    dropout: str
    all_to_all: str
    usual_rank: int
    usual_targets: tuple[str, ...]
    everything: str = ""  # a switch: all linear layers


#: LoRA of NeMo 2 and Megatron Bridge (peft/lora.py), and of NeMo 1 (conf/megatron_gpt_finetuning_config.yaml).
CLASS = Words(
    "peft.dim",
    "peft.target_modules",
    "peft.dropout",
    "peft.a2a_experimental",
    32,
    ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
)
LAUNCHER = Words(
    "model.peft.lora_tuning.adapter_dim",
    "model.peft.lora_tuning.target_modules",
    "model.peft.lora_tuning.adapter_dropout",
    "model.peft.lora_tuning.a2a_experimental",
    32,
    ("attention_qkv",),
)
#: PeftConfig of NeMo Automodel (components/_peft/lora.py); module_matcher.py has the usual targets.
AUTOMODEL = Words(
    "peft.dim",
    "peft.target_modules",
    "peft.dropout",
    "",
    8,
    ("*_proj",),
    "peft.match_all_linear",
)


def lora(draft: Draft, document: Document, words: Words, said: str) -> None:
    """[adapter] by a format's words; a module that is not simulated is lost by its name."""
    where = document.place(said)
    draft.set("adapter.kind", "lora", said, where)
    rank = draft.count(document, words.rank, words.usual_rank)
    draft.set("adapter.rank", rank, words.rank, document.place(words.rank))
    _targets(draft, document, words)
    for key, name, kind in (
        ("dropout", words.dropout, "number"),
        ("all_to_all", words.all_to_all, "truth"),
    ):
        if not name:
            continue
        value = draft.typed(document, name, kind, 0.0 if kind == "number" else False)
        draft.set(f"adapter.{key}", value, name, document.place(name))


def _targets(draft: Draft, document: Document, words: Words) -> None:
    stated = document.get(words.targets)
    if words.everything and draft.typed(document, words.everything, "truth", False):
        stated = "all-linear"
        draft.assume("no adapter beside the head")
    listed = stated.split(",") if isinstance(stated, str) else stated
    names = listed if isinstance(listed, list) else words.usual_targets
    known, strange = targets_of(tuple(str(name).strip() for name in names))
    where = document.place(words.targets)
    if strange or not known:
        found = ", ".join(strange) or shown(stated)
        draft.lose(
            where, words.targets, found, "adapters of attention and feed-forward"
        )
    if known and {"fc1", "fc2"} & set(known) and _has_experts(draft):
        what = "adapters of experts, which stay frozen"
        draft.lose(where, words.targets, ", ".join(names), what)
        known = tuple(each for each in known if each in ("qkv", "proj"))
    if known:
        draft.set("adapter.targets", list(known), words.targets, where)
    if stated is None:
        draft.assume(f"adapters in {', '.join(words.usual_targets)}, the usual targets")


def _has_experts(draft: Draft) -> bool:
    """Whether the model that was decided on has experts."""
    name = draft.get("model.name")
    if name:
        return bool(read_model(MODELS / f"{name}.toml").experts)
    return bool(draft.get("model.experts"))


def scheme_of(text: str) -> str:
    """The kind of fine-tuning that a value names: "lora", "" for none, else its own word."""
    lowered = text.lower()
    if lowered in OFF:
        return ""
    word, _, args = lowered.partition("(")
    if word.rpartition(".")[2] == "default_peft_config":
        word = args.partition(",")[0].rstrip(")")
    return "lora" if word.rpartition(".")[2].strip("'\"") == "lora" else text
