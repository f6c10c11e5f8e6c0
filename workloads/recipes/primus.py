"""Primus's YAML (AMD): overrides of Megatron-LM's arguments, or of torchtitan's and Megatron-Bridge's keys."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import yaml

from prestep.sim import yaml_text
from prestep.workloads.recipes import (
    _adapter,
    _models,
    _pipeline,
    megatron,
    megatron_bridge,
    torchtitan,
)
from prestep.workloads.recipes._documents import (
    Document,
    Entry,
    beneath,
    document_beside,
    read_yaml,
    text_of,
)
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import written

#: How people know such a recipe.
LOOKS = "YAML with modules, each with a framework, a model and overrides"
TRAINERS = ("pre_trainer", "post_trainer", "sft_trainer", "trainer")
VARIABLE = re.compile(r"\$\{(\w+):?-?([^${}]*)\}")
#: Arguments that Megatron writes the other way round.
NEGATED = {
    "disable-bias-linear": "add-bias-linear",
    "no-gradient-accumulation-fusion": "gradient-accumulation-fusion",
    "no-bias-dropout-fusion": "bias-dropout-fusion",
    "no-rope-fusion": "apply-rope-fusion",
}
SWITCHES = {"gradient-accumulation-fusion", "bias-dropout-fusion", "add-bias-linear"}
#: Schedules of Primus's own pipeline (primus_pipeline.yaml, pp_algorithm), and the least chunks of each.
SCHEDULES = {
    "1f1b": ("1f1b", 1),
    "1f1b-interleaved": ("interleaved", 2),
    "zero-bubble": ("zero-bubble", 1),
    "zbv-formatted": ("zbv", 2),
    "v-half": ("v-half", 2),
    "v-min": ("v-min", 2),
}
#: Files of torchtitan's models: family and flavor.
FLAVORED = r"(llama3|llama4|deepseek_v3|qwen3|gpt_oss)(?:\.\d)?[_-]([\w.]+?)(?:-\w+)?$"
#: What pre_trainer.yaml and language_model.yaml say of every Megatron run (primus/configs).
USUAL = {"parallel.data_parallel": "zero1", "parallel.sequence_parallel": True}
#: Where a checkout has the files of Megatron's models.
CONFIGS = "primus/configs/models/megatron"
#: Model files that extend each other.
DEEPEST = 8


def recognise(document: Document) -> bool:
    return document.kind == "yaml" and any(
        key.startswith("modules.") and key.endswith(".framework")
        for key in document.entries
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the trainer's module says; variables of the environment take their defaults."""
    draft = Recipe("primus", str(document.path))
    document = _resolved(draft, document)
    own = [f"modules.{name}.framework" for name in TRAINERS]
    others = (key for key in document.entries if key.endswith(".framework"))
    key = next((key for key in own if key in document.entries), None) or next(others)
    module = key.removesuffix(".framework")
    framework = str(document.get(f"{module}.framework"))
    given = _under(document, f"{module}.overrides.")
    name = str(document.get(f"{module}.model", ""))
    if framework == "torchtitan":
        return _titan(draft, document, given, name)
    if framework == "megatron_bridge":
        return _bridge(draft, given, name)
    if framework != "megatron":
        expected = "megatron, torchtitan or megatron_bridge"
        draft.wrong(document, key, shown(framework), expected)
        return draft
    _megatron(draft, document, given, name, f"{module}.model")
    draft.hosts = draft.hosts or None
    return draft


def _resolved(draft: Recipe, document: Document) -> Document:
    """`${NAME:default}` by its default."""
    entries: dict[str, Entry] = {}
    for key, entry in document.entries.items():
        value = entry.value
        if isinstance(value, str) and VARIABLE.search(value):
            text = VARIABLE.sub(lambda found: found[2], value)
            try:
                value = yaml_text.value_of(text)
            except (yaml.YAMLError, ValueError):
                value = text
            if "overrides" in key and "path" not in key:
                draft.assume(
                    f"{key.rpartition('.')[2]} = {shown(value)}, the default of {entry.value}"
                )
        entries[key] = Entry(value, entry.line)
    return replace(document, entries=entries)


def _under(document: Document, prefix: str) -> Document:
    """The keys under a prefix, without it."""
    entries = {
        key.removeprefix(prefix): entry
        for key, entry in document.entries.items()
        if key.startswith(prefix)
    }
    return replace(document, entries=entries)


def _titan(draft: Recipe, document: Document, given: Document, name: str) -> Recipe:
    """torchtitan's keys; the model's file names its flavor (llama3.1_8B.yaml)."""
    stem = name.removesuffix(".yaml")
    found = re.match(FLAVORED, stem)
    entries = dict(given.entries)
    if "model.flavor" not in entries:
        family, flavor = (found[1], found[2]) if found else (stem or "nothing", "")
        entries["model.name"], entries["model.flavor"] = Entry(family), Entry(flavor)
    return _as_ours(
        draft, torchtitan.read(replace(given, entries=entries, kind="toml"))
    )


def _bridge(draft: Recipe, given: Document, name: str) -> Recipe:
    """Megatron-Bridge's keys, which Primus writes without their sections."""
    entries = {
        f"model.{key}" if "." not in key else key: entry
        for key, entry in given.entries.items()
    }
    entries["model"] = Entry(name.removesuffix(".yaml"))
    if "model.precision_config" in entries:
        entries["mixed_precision"] = entries.pop("model.precision_config")
    return _as_ours(draft, megatron_bridge.read(replace(given, entries=entries)))


def _as_ours(draft: Recipe, read: Recipe) -> Recipe:
    """What the reader of another format made of a file of Primus."""
    read.format, read.assumed = draft.format, [*draft.assumed, *read.assumed]
    return read


def _megatron(
    draft: Recipe, document: Document, given: Document, name: str, said: str
) -> None:
    """Megatron's arguments: those of the model's file where it is there, and the overrides."""
    draft.set_all(USUAL)
    entries, complete = _model_file(document, name, 0)
    adapter = {key for key in given.entries if key.startswith("lora.")}
    entries |= {key: one for key, one in given.entries.items() if key not in adapter}
    inherited = not complete and "num_layers" not in entries
    if not complete:
        _name_model(draft, document, entries, name, said)
    patched = _own_pipeline(draft, document, entries)
    arguments = _negated(_arguments(entries))
    megatron.arguments(draft, arguments, document, named=not complete)
    if draft.get("megatron.moe_router_fusion"):
        draft.assume(
            "Primus-Turbo's kernel for routing counts as Transformer Engine's two"
        )
    draft.set_all(patched)
    _pipeline.uneven(draft)
    if adapter and written(given.get("lora.enabled", True)) == "true":
        _adapter.lora(draft, given, _adapter.words_of("primus"), min(adapter))
        draft.drop("megatron.overlap_param_gather")
    if inherited:
        draft.drop("model.layers")
    if not complete:
        for key in ("attention_dropout", "hidden_dropout"):
            draft.set(f"megatron.{key}", _number(entries, key))


def _name_model(
    draft: Recipe, document: Document, entries: dict[str, Entry], name: str, said: str
) -> None:
    """A model whose file is not there, by the name of the file; its layers count where nothing else says them."""
    known = _models.model_named(name.removesuffix(".yaml"))
    if known:
        draft.set("model.name", known, said, document)
        entries.setdefault("num_layers", Entry(_models.part(draft, "layers")))
    else:
        _models.missing(draft, shown(name), said, document.place(said))


def _own_pipeline(
    draft: Recipe, document: Document, entries: dict[str, Entry]
) -> dict[str, Any]:
    """The schedule of Primus's own pipeline, where it is on; its keys are taken from `entries`."""
    patch = entries.pop("patch_primus_pipeline", None)
    algorithm = entries.pop("pp_algorithm", None)
    if patch is None or patch.value is not True or algorithm is None:
        return {}
    named = SCHEDULES.get(str(algorithm.value))
    if named is None:
        known = " or ".join(SCHEDULES)
        draft.wrong(document, "pp_algorithm", shown(algorithm.value), known)
        return {}
    schedule, chunks = named
    changes: dict[str, Any] = {"parallel.schedule": schedule}
    if chunks == 2 and schedule != "interleaved":
        # The chunks of a V are the schedule's, whatever the other keys say.
        changes["parallel.vpp"] = 2
    return changes


def _number(entries: dict[str, Entry], key: str) -> float:
    value = entries[key].value if key in entries else 0
    return float(value) if isinstance(value, int | float) else 0.0


def _negated(arguments: dict[str, list[str]]) -> dict[str, list[str]]:
    """Switches that are off as Megatron's command line writes them."""
    made = {key: value for key, value in arguments.items() if key not in SWITCHES}
    for name, plain in NEGATED.items():
        if arguments.get(plain) == ["false"]:
            made[name] = []
    return made


def _arguments(entries: dict[str, Entry]) -> dict[str, list[str]]:
    """Keys as the arguments of Megatron's command line."""
    return {
        key.rpartition(".")[2].replace("_", "-"): _words(entry.value)
        for key, entry in entries.items()
        if entry.value is not None
    }


def _words(value: Any) -> list[str]:
    if value is True:
        return []
    if value is False:
        return ["false"]
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items]


def _model_file(
    document: Document, name: str, depth: int
) -> tuple[dict[str, Entry], bool]:
    """Arguments of the model's file and of those that it extends; whether it has the model's sizes."""
    found = document_beside(document.path, name)
    if found is None and (file := beneath(document.path, f"{CONFIGS}/{name}")):
        found = read_yaml(file, text_of(file))
    if found is None or depth > DEEPEST:
        return {}, False
    made: dict[str, Entry] = {}
    for other in found.get("extends", found.get("bases", [])) or []:
        made |= _model_file(found, str(other), depth + 1)[0]
    made |= {
        key: entry
        for key, entry in found.entries.items()
        if key not in ("extends", "bases")
    }
    return made, {"num_layers", "hidden_size", "num_attention_heads"} <= made.keys()
