"""torchtitan's recipes of 2026, functions of config_registry.py that return a Trainer.Config, as keys of its TOML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.recipes import _models, _python
from prestep.workloads.recipes._documents import Document, Entry
from prestep.workloads.recipes._reading import Recipe

#: Sections that have the names of the TOML's.
SAME = ("training", "parallelism", "compile", "activation_checkpoint", "debug")
WORDS = {
    "training.max_context_length": "training.seq_len",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "parallelism.enable_fsdp_symm_mem": "parallelism.enable_fsdp_symm_mem",
}
TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
STEP = "training.num_tokens_per_train_step"
PARTS = "parallelism.num_pp_microbatches"
LENGTH, RANKS = 2048, 16384  # of TrainingConfig (torchtitan/config/configs.py)
CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}
#: Adapters.
LORA = "lora"
#: Converters of layers by the names of the TOML's.
CONVERTERS = {
    "Float8LinearConverter": "float8",
    "Float8GroupedExpertsConverter": "float8",
    "MXFP8LinearConverter": "mx",
    "MXFP8GroupedExpertsConverter": "mx",
    "NVFP4LinearConverter": "nvfp4",
    "LoRAConverter": LORA,
}
#: The layers' attention, of Python recipes alone.
ATTENTION = "model_spec.attn_backend"
#: What its functions return: a trainer, of its own modules or transformers', or what controls one and a generator.
CONFIGS = re.compile(r"\b(?:\w*Trainer|Controller)\.Config\b|TransformersBackendConfig")
LEARNING = "training and generation in turn (reinforcement learning), which [rl] of a scenario says"


def recognise(document: Document) -> bool:
    return document.kind == "python" and bool(
        CONFIGS.search(document.text) and "torchtitan" in document.text
    )


def as_tables(draft: Recipe, document: Document) -> Document:
    """The function's keys as those of a TOML file."""
    made, open_ones = _python.read_recipe(document, document.part)
    draft.unknown += open_ones
    if str(made.get("recipe")).startswith("Controller"):
        where = made.place("recipe")
        raise InputError.of(where, "", "a Controller", "a Trainer", LEARNING)
    entries: dict[str, Entry] = {}
    for key, entry in made.entries.items():
        section = key.partition(".")[0]
        if key.startswith("model_spec") or key in SAME or key == "recipe":
            continue
        if section in SAME or section == "float8":
            entries[WORDS.get(key, key)] = entry
        elif key.endswith("optimizer_name"):
            entries["optimizer.name"] = Entry(str(entry.value).lower(), entry.line)
    _model(made, entries)
    _graph(draft, made, entries)
    _tokens(draft, made, entries)
    _checkpoints(made, entries)
    _converters(draft, made, entries)
    _data(draft, made)
    entries.setdefault("metrics.log_freq", Entry(1))
    entries[ATTENTION] = made.entries.get(ATTENTION, Entry("flex"))
    return replace(made, kind="toml", entries=entries)


def _model(made: Document, entries: dict[str, Entry]) -> None:
    """model_registry("8B"): the flavor of the model whose folder it is."""
    words = _python.words(made.get("model_spec", ""))
    line = made.entries["model_spec"].line if "model_spec" in made.entries else 0
    flavor = made.get("model_spec.flavor", words[1] if len(words) > 1 else "")
    entries["model.name"] = Entry(made.path.absolute().parent.name, line)
    entries["model.flavor"] = Entry(str(flavor), line)
    for key in ("hf_model", "model_spec.num_mtp_layers", "model_spec.moe_comm_backend"):
        if key in made.entries:
            entries[f"model.{key.rpartition('.')[2]}"] = made.entries[key]


def _graph(draft: Recipe, made: Document, entries: dict[str, Entry]) -> None:
    """The graph trainer's own compiler, which leaves all but attention to the modules' own kernels unless asked."""
    compiler = str(made.get("compile", ""))
    if not compiler.startswith("GraphTrainer"):
        return
    way = made.get("compile.inductor_compilation", "regional")
    if made.get("compile.enable") is True and way == "regional":
        entries["compile.enable"] = Entry(False, made.entries["compile"].line)
        draft.assume(
            "one graph of the modules' own kernels (regional compilation), which the host launches one by one here"
        )


def _tokens(draft: Recipe, made: Document, entries: dict[str, Entry]) -> None:
    """Samples of a rank and of a step, which newer versions say in tokens."""
    if "training.local_batch_size" in entries:
        return
    length = draft.count(made, "training.max_context_length", LENGTH)
    micro = max(1, draft.count(made, TOKENS, RANKS) // length)
    staged = draft.count(made, "parallelism.pipeline_parallel_degree", 1) > 1
    parts = draft.count(made, PARTS, 1) if staged else 1
    line = made.entries[TOKENS].line if TOKENS in made.entries else 0
    entries["training.seq_len"] = Entry(length, line)
    entries["training.local_batch_size"] = Entry(micro * parts, line)
    entries["parallelism.pipeline_parallel_microbatch_size"] = Entry(micro, line)
    whole = draft.typed(made, STEP, "whole", -1)
    if whole and whole > 0:
        entries["training.global_batch_size"] = Entry(max(1, whole // length))
    for key in (TOKENS, STEP):
        entries.pop(key, None)
    if not draft.is_on(made, "training.disable_cuda_graphs"):
        draft.assume(
            "CUDA graphs of forward and backward, which this torchtitan turns on, are left out"
        )
    entries.pop("training.disable_cuda_graphs", None)


def _checkpoints(made: Document, entries: dict[str, Entry]) -> None:
    """FullAC and SelectiveAC, or a configuration with a mode."""
    name = (
        str(made.get("activation_checkpoint", "")).partition(".")[0].partition("(")[0]
    )
    key = "activation_checkpoint.mode"
    if key not in entries:
        mode = CHECKPOINTS.get(name, name or "none")
        entries[key] = Entry(mode)
        if mode == "selective":
            entries["activation_checkpoint.selective_ac_option"] = Entry("op")


def _converters(draft: Recipe, made: Document, entries: dict[str, Entry]) -> None:
    """Layers that a converter replaces."""
    listed = made.get("model_spec.converters", [])
    names = [str(one).partition(".")[0] for one in listed] if listed else []
    found: list[str] = []
    for name in names:
        ours = CONVERTERS.get(name)
        where = made.place("model_spec.converters")
        if ours is None:
            draft.lose(where, "converters", name, "products in another format")
            continue
        found += [ours] if ours not in (*found, LORA) else []
        for key, entry in made.entries.items():
            prefix = f"model_spec.converters.{name}.Config."
            if key.startswith(prefix):
                entries[f"{ours}.{key.removeprefix(prefix)}"] = entry
    if found:
        entries["model.converters"] = Entry(found)


def _data(draft: Recipe, made: Document) -> None:
    """Documents in one sample, which attention by a mask keeps apart."""
    key = "dataloader.dataset"
    backend: Any = made.get(ATTENTION, "flex")
    if "Packing" not in str(made.get(key, "")) or backend not in ("flex", "varlen"):
        return
    prefix = f"{key}.dataset.source."
    said = {
        name: str(made.get(name)) for name in made.entries if name.startswith(prefix)
    }
    corpora = [
        (name, place)
        for name, place in said.items()
        if place in _models.tables()["documents"]
    ]
    if not corpora:
        _models.packed(draft, key, made.place(key), str(made.get(key)))
    for name, corpus in corpora:
        _models.documents(draft, corpus, name, made)
