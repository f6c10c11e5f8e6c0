"""Scripts of MLPerf Training's submissions for language models: config_*.sh and the scripts that they source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.workloads.recipes import _core, _models, _pipeline, _routers, _shell
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import rules, written

#: How people know such a recipe.
LOOKS = "a script that exports MINIBS, DGXNNODES, DGXSYSTEM or PRIMUS_..."
RULES = Path(__file__).with_suffix(".toml")
#: Variables that only such scripts set, one of which is enough.
OWN = (
    r"^[ \t]*(?:export\s+|:\s*\$\{)?(MINIBS|DGXNNODES|DGXNGPU|DGXSYSTEM|TENSOR_MODEL_PARALLEL|"
    r"PRIMUS_MICRO_BATCH_SIZE)[:=]"
)
#: What the submissions and each benchmark have in common.
BENCHMARKS = Path(__file__).with_name("_benchmarks.toml")
#: Sections of a scenario that they may fill.
SECTIONS = ("model", "training", "parallel", "megatron", "adapter")
#: The argument of Megatron's strategy that takes NCCL's file of communicators.
HANDED = "nccl_communicator_config_path"
#: Variables that name a model, or the file of one, where neither MODEL_SIZE nor a folder does.
NAMING = ("MODEL", "MODEL_NAME", "HF_MODEL", "EXP")
#: What only fine-tuning with adapters sets, whose scripts name no model.
OF_LORA = re.compile(r"\bLORA_|_LORA_")
#: Names of recipes of 8 bits at the end of a script's own name.
SCALED = {"mxfp8": "mx", "fp8": "dynamic"}
#: Granularity, method and number of layers that run again: AMD's names and those of NVIDIA's configurations.
RECOMPUTED = (
    ("ACG", "ACM", "ACL"),
    ("ACT_CKPT_GRANULARITY", "ACT_CKPT_METHOD", "ACT_CKPT_NUM_LAYERS"),
    ("RECOMPUTE_GRANULARITY", "RECOMPUTE_METHOD", "RECOMPUTE_NUM_LAYERS"),
)

#: What the first of them may be.
GRANULARITIES = ("full", "selective", "null", "none", "empty")


def recognise(document: Document) -> bool:
    return document.kind == "shell" and bool(
        re.search(OWN, document.text, re.MULTILINE)
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the script and those that it sources export, over NeMo's defaults in these submissions."""
    script = _shell.read_exports(document.path, document.text)
    draft = Recipe("mlperf", str(document.path))
    draft.take(_table()["usual"], "", "")
    draft.assume(
        "NeMo with the distributed optimizer, gradients reduced in bf16, as the submissions' pretrain.py has it"
    )
    benchmark = _benchmark(draft, script)
    _layout(draft, script)
    _batch(draft, script)
    draft.read(script, rules(RULES))
    _communicators(draft, script)
    if written(script.get("CP_COMM_TYPE")) == "p2p":
        draft.drop("parallel.ring_degree")
    _pipeline.of_layout(draft)
    _recomputed(draft, script)
    _graphs(draft, script)
    _scaling(draft, script)
    _core.settle_fuser(draft)
    _core.plain_ends(draft, script, str.upper)
    _core.without_fp8(draft)
    name = "MOE_ROUTER_LOAD_BALANCING_TYPE"
    balancing = script.get(name) or benchmark.get("router")
    _routers.settle(draft, balancing, name, script)
    gpus = _first(script, "DGXNGPU", "GPUS_PER_NODE")
    draft.hosts = draft.count(script, _first(script, "DGXNNODES", "NNODES"))
    if draft.hosts and script.get(gpus):
        draft.gpus = draft.hosts * draft.count(script, gpus, 1)
    return draft


def _recomputed(draft: Recipe, script: Document) -> None:
    """Layers that run again; a word for them that nobody knows is lost."""
    said = {name: entry.value for name, entry in script.entries.items()}
    for name, tables in recomputed(said).items():
        draft.take(tables, name, script)
    for name, *_ in RECOMPUTED:
        if written(said.get(name)) not in GRANULARITIES:
            known = f"one of {', '.join(GRANULARITIES)}"
            draft.lose(script, name, shown(said[name]), known)
    name = "RECOMPUTE_MODULES"
    parts = str(script.get(name, "")).replace(",", " ").split()
    if parts and written(said.get("RECOMPUTE_GRANULARITY", "selective")) == "selective":
        _core.run_again(draft, parts, name, script.place(name))


def recomputed(said: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Tables of a scenario for layers that run again, by the variable that says which."""
    for granularity, method, count in RECOMPUTED:
        how, layers = written(said.get(granularity)), written(said.get(count))
        if how == "selective":
            return {granularity: {"training": {"recompute": "selective"}}}
        if how == "full" and written(said.get(method)) == "block":
            some = layers.isdecimal() and int(layers) > 0
            keys = {"recompute_num_layers": int(layers)} if some else {}
            return {count: {"megatron": keys}}
        if how == "full":
            return {granularity: {"training": {"recompute": "full"}}}
    return {}


def _first(script: Document, *names: str) -> str:
    """The first of several names of one variable that the script sets."""
    return next((name for name in names if name in script.entries), names[0])


def _graphs(draft: Recipe, script: Document) -> None:
    """Parts that are captured, by name; without an implementation there are no graphs."""
    name, how = "CUDA_GRAPH_SCOPE", "CUDA_GRAPH_IMPLEMENTATION"
    if written(script.get(how, "")) in ("none", "null"):
        draft.drop("megatron.cuda_graph_scope")
        return
    parts = str(script.get(name, "")).replace(",", " ").split()
    if strange := [part for part in parts if part not in _core.GRAPHED]:
        known = f"graphs of {', '.join(_core.GRAPHED)}"
        draft.lose(script, name, ", ".join(strange), known)
    elif parts:
        draft.set("megatron.cuda_graph_scope", parts, name, script)


def _communicators(draft: Recipe, script: Document) -> None:
    """NCCL's file reaches no communicator unless pretrain.py beside the script hands it to Megatron's strategy.

    That of round 5.0 reads the variable into its configuration and does nothing with it.
    """
    program = script.path.with_name("pretrain.py")
    text = program.read_text("utf-8") if program.is_file() else ""
    if script.get("NCCL_CFG_PATH") and text and HANDED not in text:
        draft.drop("nccl.dp", "nccl.pp", "nccl.cp")
        draft.assume("NCCL_CFG_PATH reaches no communicator: pretrain.py says so")


def _scaling(draft: Recipe, script: Document) -> None:
    """How scales of 8 bits are found without FP8_RECIPE: by the script's name, or by a switch of MXFP8 alone."""
    if script.get("FP8_RECIPE") or draft.get("training.precision") != "fp8":
        return
    name = "REUSE_GRAD_BUF_FOR_MXFP8_PARAM_AG"
    words = script.path.stem.lower().split("_")
    way = next((SCALED[word] for word in words if word in SCALED), None)
    if written(script.get(name)) == "true":
        way = "mx"
    if way:
        draft.set("megatron.fp8_scaling", way, name, script)
        draft.assume(f"no FP8_RECIPE: {way} scales, by the script's name or {name}")


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return files.toml(BENCHMARKS.read_text(encoding="utf-8"))


def _benchmark(draft: Recipe, script: Document) -> Mapping[str, Any]:
    """Takes and returns what the model's benchmark has in common.

    The model is that of MODEL_SIZE, of a folder of the script, of its own name, or what a variable calls a model.
    """
    folders = [part.lower() for part in reversed(script.path.absolute().parent.parts)]
    size = str(script.get("MODEL_SIZE") or script.get("SIZE") or "").lower()
    name = script.path.stem.lower().replace("-", "_").split("_")
    named = [_named(str(script.get(key, ""))) for key in NAMING]
    lora = ["llama2_70b_lora"] if any(map(OF_LORA.search, script.entries)) else []
    for text in filter(None, (size, *folders, *name, *named, *lora)):
        for entry in _table()["benchmark"]:
            if re.fullmatch(entry["names"], text):
                _take_benchmark(draft, entry, script.place("MODEL_SIZE"))
                return dict(entry)
    _models.missing(draft, "nothing", "MODEL_SIZE", str(script.path))
    return {}


def _named(text: str) -> str:
    """The bundled model that begins the name of a model or of its file (llama3.1_8B-pretrain-fp4.yaml)."""
    parts = text.rpartition("/")[2].removesuffix(".yaml").split("-")
    starts = ("-".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(filter(None, map(_models.model_named, starts)), "")


def _take_benchmark(draft: Recipe, entry: Mapping[str, Any], where: str) -> None:
    """What a benchmark has in common; the reader is told."""
    tables = {name: entry[name] for name in SECTIONS if name in entry}
    draft.take(tables, entry["names"], where)
    model, tokens = entry["model"], entry["training"]["seq_len"]
    draft.assume(
        f"the benchmark of {model['name']}: {tokens} tokens a sample, a vocabulary of {model['vocab']}"
    )
    if "assumed" in entry:
        draft.assume(f"the benchmark of {model['name']}: {entry['assumed']}")


def _layout(draft: Recipe, script: Document) -> None:
    for key, *names in (
        ("tp", "TENSOR_MODEL_PARALLEL", "TP", "MLLOG_TENSOR_PARALLELISM"),
        ("pp", "PIPELINE_MODEL_PARALLEL", "PP", "MLLOG_PIPELINE_PARALLELISM"),
        ("cp", "CONTEXT_PARALLEL", "CP", "MLLOG_CONTEXT_PARALLELISM"),
        ("ep", "EXPERT_PARALLEL", "EP", "MLLOG_EXPERT_PARALLELISM"),
    ):
        name = _first(script, *names)
        draft.set(f"parallel.{key}", draft.count(script, name, 1), name, script)
    name = _first(script, "INTERLEAVED_PIPELINE", "VP")
    if str(script.get(name, "null")) not in ("null", "None", ""):
        chunks = draft.count(script, name, 1)
        if draft.get("parallel.pp") > 1 and chunks > 1:
            draft.set("parallel.vpp", chunks, name, script)
            draft.set("parallel.schedule", "interleaved", name, script)


def _batch(draft: Recipe, script: Document) -> None:
    """MINIBS samples of every replica, in microbatches; or the whole batch."""
    micro = _first(script, "MICRO_BATCH_SIZE", "MBS", "PRIMUS_MICRO_BATCH_SIZE")
    whole, mini = _first(script, "GBS", "PRIMUS_GLOBAL_BATCH_SIZE"), "MINIBS"
    size = draft.count(script, micro, 1)
    draft.set("training.micro_batch", size, micro, script)
    if script.get(mini) is not None:
        samples = draft.count(script, mini, 1)
        if samples % size:
            draft.wrong(script, mini, samples, f"a multiple of {micro} = {size}")
        draft.set("training.microbatches", samples // size or 1, mini, script)
    elif script.get(whole) is not None:
        samples = draft.count(script, whole, 1)
        draft.set("training.global_batch", samples, whole, script)
    else:
        draft.wrong(
            str(script.path), mini, shown(None), "samples of a replica in a step"
        )
