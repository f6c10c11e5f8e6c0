"""Adapters of a recipe as keys of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prestep.workloads.job.adapter import USUAL, targets_of
from prestep.workloads.models.projections import projections_of
from prestep.workloads.recipes import _models
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown

LOST = "frozen weights and adapters (LoRA)"
OFF = ("none", "null", "false")


@dataclass(frozen=True)
class Words:
    """What a format calls an adapter's keys, and what it takes where they are not said."""

    rank: str
    targets: str
    usual_rank: int
    usual_targets: tuple[str, ...]
    dropout: str = ""
    all_to_all: str = ""
    everything: str = ""  # a switch: all linear layers
    experts: bool = False  # whether modules of experts can have adapters


def words_of(name: str) -> Words:
    """A format's words, as `_models.toml` has them."""
    row = _models.tables()["adapters"][name]
    return Words(**row | {"usual_targets": tuple(row["usual_targets"])})


def lora(draft: Recipe, document: Document, words: Words, said: str) -> None:
    """[adapter] by a format's words; a module that is not simulated is lost by its name."""
    draft.set("adapter.kind", "lora", said, document)
    rank = draft.count(document, words.rank, words.usual_rank)
    draft.set("adapter.rank", rank, words.rank, document)
    _targets(draft, document, words)
    for key, name, kind in (
        ("dropout", words.dropout, "number"),
        ("all_to_all", words.all_to_all, "truth"),
    ):
        if not name:
            continue
        value = draft.typed(document, name, kind, 0.0 if kind == "number" else False)
        draft.set(f"adapter.{key}", value, name, document)


def _names(draft: Recipe, document: Document, words: Words) -> Sequence[Any]:
    """Names of the modules that have adapters, or the usual ones."""
    stated = document.get(words.targets)
    if words.everything and draft.is_on(document, words.everything):
        stated = "all-linear"
        draft.assume("no adapter beside the head")
    listed = stated.split(",") if isinstance(stated, str) else stated
    return listed if isinstance(listed, list) else words.usual_targets


def _targets(draft: Recipe, document: Document, words: Words) -> None:
    """Projections with an adapter: those that are named, simulated and in the model."""
    names = _names(draft, document, words)
    known = _simulated(draft, document, words, names)
    model = model_of(draft)
    if model.experts and {"fc1", "fc2"} & set(known):
        if not words.experts:
            known = tuple(each for each in known if each not in ("fc1", "fc2"))
        _experts(draft, document, words, names, model)
    if known:
        draft.set("adapter.targets", list(known), words.targets, document)
    else:
        here = projections_of(model)
        usual = ", ".join(each for each in USUAL if each in here) or "no projection"
        draft.assume(
            f"adapters in {usual}: {words.targets} names none that is simulated"
        )
    if names is words.usual_targets and document.get(words.targets) is None:
        draft.assume(f"adapters in {', '.join(words.usual_targets)}, the usual targets")


def _simulated(
    draft: Recipe, document: Document, words: Words, names: Sequence[Any]
) -> tuple[str, ...]:
    """The projections that names stand for and the model has; other names are noted."""
    known, strange = targets_of(tuple(str(name).strip() for name in names))
    if strange or not known:
        found = ", ".join(strange) or shown(document.get(words.targets))
        draft.lose(
            document, words.targets, found, "adapters of attention and feed-forward"
        )
    here = projections_of(model_of(draft))
    if known and not set(known) & set(here):
        found, what = ", ".join(map(str, names)), "projections that the model has"
        draft.lose(document, words.targets, found, what)
    return tuple(each for each in known if each in here)


def _experts(
    draft: Recipe,
    document: Document,
    words: Words,
    names: Sequence[Any],
    model: ModelParts,
) -> None:
    """Which adapters experts have, and of which rank."""
    if not words.experts:
        what = "adapters of experts, which stay frozen"
        draft.lose(document, words.targets, ", ".join(names), what)
        return
    if draft.get("training.framework") == "automodel":
        # Modules of all experts match "*" alone, or their own name (components/_peft/module_matcher.py).
        meant = any(str(name) == "*" or "experts" in str(name) for name in names)
        scaled = "peft.moe_rank_scaling"
        draft.set("adapter.experts", "each" if meant else "frozen")
    else:
        scaled, shares = "peft.normalize_moe_lora", "peft.share_expert_adapters"
        shared = draft.typed(document, shares, "truth", True)
        draft.set("adapter.experts", "shared" if shared else "each", shares, document)
    if draft.is_on(document, scaled):
        rank = max(1, draft.get("adapter.rank") // max(1, model.experts_per_token))
        draft.set("adapter.expert_rank", rank, scaled, document)


@dataclass(frozen=True)
class ModelParts:
    """What decides on projections, of the model that was decided on."""

    experts: int
    experts_per_token: int
    latent: bool
    q_lora_rank: int
    layer_pattern: str
    mtp_layers: int


def model_of(draft: Recipe) -> ModelParts:
    """What a recipe has said of its model so far."""
    return ModelParts(
        int(_models.part(draft, "experts") or 0),
        int(_models.part(draft, "experts_per_token") or 0),
        bool(_models.part(draft, "kv_lora_rank")),
        int(_models.part(draft, "q_lora_rank") or 0),
        str(_models.part(draft, "layer_pattern") or ""),
        int(_models.part(draft, "mtp_layers") or 0),
    )


def scheme_of(text: str) -> str:
    """The kind of fine-tuning that a value names: "lora", "" for none, else its own word."""
    lowered = text.lower()
    if lowered in OFF:
        return ""
    word, _, args = lowered.partition("(")
    if word.rpartition(".")[2] == "default_peft_config":
        word = args.partition(",")[0].rstrip(")")
    return "lora" if word.rpartition(".")[2].strip("'\"") == "lora" else text
