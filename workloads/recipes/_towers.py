"""Recipes that train a model on pictures, films or sound: the part of it that sees or hears is not simulated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._key_words import OFF, words_of
from prestep.workloads.recipes._reading import Recipe, shown

#: Words of keys that only such a training has.
KEYS = frozenset(
    ("vision", "image", "images", "video", "audio", "multimodal", "pixels", "vlm")
)
#: Words of keys whose values name a model, its class or its data's form.
NAMING = frozenset(
    ("model", "target", "template", "recipe", "processor", "architecture", "class")
)
#: Names of models that see or hear, and of their classes, templates and programs.
NAMES = re.compile(
    r"(?:^|[^a-z])(?:vlm?|vision|omni|audio|multimodal|llava\w*|pixtral|paligemma\d?|internvl\w*|smolvlm\w*|idefics\w*)"
    r"(?:$|[^a-z])|vision2seq|imagetexttotext|conditionalgeneration|forvlm|qwen[\d.]*_?vl",
)
#: Arguments and programs of scripts.
SCRIPT = re.compile(
    r"\b(pretrain_vlm|pretrain_vision\w*|train_vlm|--vision-[\w-]+|--img-[hw])\b"
)
#: What a Python recipe that trains such a model says in its function or its file's name.
PYTHON = re.compile(r"(?:^|_)(?:vl|vlm|omni|audio|vision)(?:$|_)")
WHAT = "the part of the model that sees or hears"


def check(recipe: Recipe, document: Document) -> Recipe:
    """The recipe, with what says that it trains more than a text model among what is not simulated."""
    signs = _signs(document)
    sign = next(signs, None)
    if sign is None:
        return recipe
    key, found = sign
    hint = f"{WHAT}; --lenient predicts its text model alone"
    lost = Mistake(document.place(key), key, found, "a text model", hint)
    return replace(recipe, lost=(*recipe.lost, lost))


def _signs(document: Document) -> Iterator[tuple[str, str]]:
    """Keys, with what they say, that only such a training has."""
    for key, entry in document.entries.items():
        words, text = set(words_of(key)), str(entry.value).lower()
        if entry.value is None or text in OFF:
            continue
        named = isinstance(entry.value, str) and NAMES.search(text)
        if words & KEYS or (words & NAMING and named):
            yield key, shown(entry.value)
    if document.kind == "shell" and (word := SCRIPT.search(document.text)):
        yield word[1], "an argument or a program"
    names = (document.part, document.path.stem, document.path.parent.name)
    if document.kind == "python":
        yield from (("", name) for name in names if PYTHON.search(name.lower()))
