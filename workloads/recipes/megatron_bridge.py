"""Megatron-Bridge's recipes: a function of a Python file, or YAML with its keys; nothing is imported."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from prestep.workloads.recipes import (
    _adapter,
    _core,
    _core_model,
    _models,
    _python,
    _routers,
)
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe
from prestep.workloads.recipes._rules import written

#: How people know such a recipe.
LOOKS = "Python that imports megatron.bridge, or YAML with model.tensor_model_parallel_size and train.global_batch_size"
#: How far a bias of an expert moves a step (TransformerConfig.moe_router_bias_update_rate).
RATE = 1e-3
#: What recipes are made of, and what a function's name says behind its model's.
CONTAINER, TASKS = (
    "ConfigContainer(",
    r"_(?:pretrain|sft|peft|finetune|lora)\b|_(?:pretrain|sft|peft|finetune|lora)_",
)


def recognise(document: Document) -> bool:
    if document.kind == "python":
        return "megatron.bridge" in document.text
    keys = document.entries
    has_train = any(key.startswith("train.") for key in keys)
    return (
        document.kind == "yaml"
        and has_train
        and any(key.startswith(("model.", "ddp.", "dataset.")) for key in keys)
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the function or the file sets, over what such recipes begin with."""
    draft = Recipe("megatron_bridge", str(document.path))
    open_ones: tuple[str, ...] = ()
    if document.kind == "python":
        document, open_ones = _python.read_recipe(document, document.part)
    begun = str(document.get("recipe", "_pretrain_common()"))
    trains = _begin(draft, document, begun)
    _core.read(draft, document)
    if not trains:
        draft.assume("fine-tuning: samples count as full sequences, each one document")
    names = _python.words(document.get("model"))
    usual = re.split(TASKS, document.part)[0]
    names += [document.path.stem, document.part, usual]
    _core_model.model(draft, document, names, "model")
    _core.adapters(draft, document)
    if _adapter.model_of(draft).experts and draft.get("parallel.tp", 1) > 1:
        # A provider is made without tensor parallelism, and takes its degree for that of experts then.
        draft.set("parallel.etp", draft.get("parallel.etp", 1))
    usual_keys = _models.bridge_of(draft)
    if trains:
        _routing(draft, document, usual_keys)
    if "megatron.rope_fusion" not in draft.settings and "rope_fusion" in usual_keys:
        draft.set("megatron.rope_fusion", usual_keys["rope_fusion"])
    if "peft" in begun and document.get("peft") is None:
        _adapter.lora(draft, document, _adapter.words_of("class"), "recipe")
    if gpus := re.search(r"_(\d+)gpu(?:_|$)", document.part):
        draft.gpus = int(gpus[1])
    draft.unknown += open_ones
    return draft


def _begin(draft: Recipe, document: Document, begun: str) -> bool:
    """Sets what such recipes begin with; whether this one trains a whole model, and does not fine-tune one."""
    whole = begun.startswith(CONTAINER)  # what it begins with was found and read, too
    task = document.part if whole else begun
    trains = not re.search("sft|peft|finetune|lora", task)
    draft.set_all(_models.tables()["begun"]["pretrain" if trains else "finetune"])
    if not whole:
        draft.assume(
            f"{begun}: its batch, distributed optimizer and gradients in fp32, as Megatron-Bridge has them"
        )
    return trains


def _routing(draft: Recipe, document: Document, usual: Mapping[str, Any]) -> None:
    """What balances a router that is trained from scratch: the recipe's keys, or what the model's bridge class sets."""
    said, kind = document.ended("moe_router_load_balancing_type")
    _, loss = document.ended("moe_aux_loss_coeff")
    _, biased = document.ended("moe_router_enable_expert_bias")
    _, rate = document.ended("moe_router_bias_update_rate")
    _, steps = document.ended("train_iters")
    on = usual.get("biased") if biased is None else written(biased) == "true"
    each, runs = _routers.number(rate), _routers.number(steps)
    moved = (RATE if each is None else each) * (math.inf if runs is None else runs)
    _routers.settle(
        draft,
        kind or usual.get("routing"),
        said,
        document,
        usual.get("loss") if loss is None else loss,
        moved if on else 0.0,
    )
