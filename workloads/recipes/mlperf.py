"""Scripts of MLPerf Training's submissions for language models: config_*.sh and the scripts that they source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.workloads.recipes import _core, _models, _pipeline, _shell
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Draft, Recipe, shown
from prestep.workloads.recipes._rules import rules, written

#: How people know such a recipe.
LOOKS = "a script that exports MINIBS, DGXNNODES or DGXSYSTEM"
RULES = Path(__file__).with_suffix(".toml")
#: Variables that only such scripts set, one of which is enough.
OWN = r"^[ \t]*(?:export\s+|:\s*\$\{)?(MINIBS|DGXNNODES|DGXNGPU|DGXSYSTEM|TENSOR_MODEL_PARALLEL)[:=]"
#: Benchmarks: pattern of a folder's name or of MODEL_SIZE -> model, its vocabulary there, tokens of a sample.
#: Vocabularies: Mixtral's tokenizer (405B), Llama's own (8B), Megatron's of GPT-3 (lab/cases/mlperf).
BENCHMARKS = (
    (r"llama31_405b|405b", "llama3.1-405b", 32000, 8192),
    (r"llama31_8b|8b", "llama3-8b", 128256, 8192),
    (r"gpt3|large_language_model_pretraining|175b", "gpt3-175b", 51200, 2048),
    (r"llama2_70b_lora", "llama2-70b", 32000, 8192),
)
#: What the submissions' NeMo has in common (pretrain.py: grad_reduce_in_fp32=False, the distributed optimizer).
USUAL = {
    "training.framework": "megatron",
    "training.precision": "bf16",
    "parallel.data_parallel": "zero1",
    "parallel.sequence_parallel": True,
    "parallel.uneven_stages": True,
    "megatron.overlap_grad_reduce": True,
    "megatron.overlap_param_gather": True,
    "megatron.main_grads": "bf16",
}
#: Parameters of a bucket of Llama 3.1 where no BUCKET_SIZE says otherwise (NeMo's MegatronCommOverlapCallback).
BUCKET = 128 * 1024 * 1024
#: LoRA's own (train.py and conf/megatron_gpt_peft_tuning_config.yaml of the submissions).
LORA = {
    "adapter.kind": "lora",
    "adapter.rank": 16,
    "adapter.targets": ["qkv", "proj"],
    "adapter.dropout": 0.1,
    "adapter.fp8_weights": True,
    "megatron.overlap_grad_reduce": False,
    "megatron.overlap_param_gather": False,
    "megatron.cross_entropy_fusion": False,
    "megatron.cp_comm_type": "a2a",
}


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
    draft = Draft("mlperf", str(document.path))
    draft.set_all(USUAL)
    draft.assume(
        "NeMo with the distributed optimizer, gradients reduced in bf16, as the submissions' pretrain.py has it"
    )
    _benchmark(draft, script)
    _layout(draft, script)
    _batch(draft, script)
    draft.read(script, rules(RULES))
    _pipeline.of_layout(draft)
    _recomputed(draft, script)
    _core.without_fp8(draft)
    nodes, gpus = (
        _first(script, "DGXNNODES", "NNODES"),
        _first(script, "DGXNGPU", "GPUS_PER_NODE"),
    )
    draft.hosts = draft.count(script, nodes)
    if draft.hosts and script.get(gpus):
        draft.gpus = draft.hosts * draft.count(script, gpus, 1)
    return draft.recipe()


def _recomputed(draft: Draft, script: Document) -> None:
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


def _benchmark(draft: Draft, script: Document) -> None:
    """The model, by MODEL_SIZE, the folder that the script lies in, or the script's own name."""
    folders = [part.lower() for part in reversed(script.path.absolute().parent.parts)]
    size = str(script.get("MODEL_SIZE") or script.get("SIZE") or "").lower()
    name = script.path.stem.lower().replace("-", "_").split("_")
    for text in (size, *folders, *name):
        for pattern, model, vocab, tokens in BENCHMARKS:
            if text and re.fullmatch(pattern, text):
                where = script.place("MODEL_SIZE")
                draft.set("model.name", model, "MODEL_SIZE", where)
                draft.set("model.vocab", vocab)
                draft.set("training.seq_len", tokens)
                if model.startswith("llama3"):
                    draft.set("megatron.bucket_size", BUCKET)
                draft.assume(
                    f"the benchmark of {model}: {tokens} tokens a sample, a vocabulary of {vocab}"
                )
                if "lora" in pattern:
                    _lora(draft, where)
                return
    _models.missing(draft, "nothing", "MODEL_SIZE", str(script.path))


def _lora(draft: Draft, where: str) -> None:
    """What the benchmark and NVIDIA's train.py of it say of the adapters and of data parallelism."""
    draft.set_all(LORA, "llama2_70b_lora", where)
    draft.assume(
        "the benchmark of llama2_70b_lora: rank 16 with dropout 0.1 in attention, frozen weights in fp8"
    )


def _layout(draft: Draft, script: Document) -> None:
    for key, *names in (
        ("tp", "TENSOR_MODEL_PARALLEL", "TP"),
        ("pp", "PIPELINE_MODEL_PARALLEL", "PP"),
        ("cp", "CONTEXT_PARALLEL", "CP"),
        ("ep", "EXPERT_PARALLEL", "EP"),
    ):
        name = _first(script, *names)
        draft.set(f"parallel.{key}", draft.count(script, name, 1), name, script)
    name = "EXPERT_TENSOR_PARALLEL"
    if script.get(name):
        count = draft.count(script, name, 1)
        draft.set("parallel.etp", count, name, script)
    name = _first(script, "INTERLEAVED_PIPELINE", "VP")
    if str(script.get(name, "null")) not in ("null", "None", ""):
        chunks = draft.count(script, name, 1)
        if draft.get("parallel.pp") > 1 and chunks > 1:
            draft.set("parallel.vpp", chunks, name, script)
            draft.set("parallel.schedule", "interleaved", name, script)
    layers = "OVERWRITTEN_NUM_LAYERS"
    if script.get(layers):
        draft.set("model.layers", draft.count(script, layers), layers, script)


def _batch(draft: Draft, script: Document) -> None:
    """MINIBS samples of every replica, in microbatches; or the whole batch."""
    micro, mini = _first(script, "MICRO_BATCH_SIZE", "MBS"), "MINIBS"
    size = draft.count(script, micro, 1)
    draft.set("training.micro_batch", size, micro, script)
    if script.get(mini) is not None:
        samples = draft.count(script, mini, 1)
        if samples % size:
            draft.wrong(script, mini, samples, f"a multiple of {micro} = {size}")
        draft.set("training.microbatches", samples // size or 1, mini, script)
    elif script.get("GBS") is not None:
        whole = draft.count(script, "GBS", 1)
        draft.set("training.global_batch", whole, "GBS", script)
    else:
        draft.wrong(
            str(script.path), mini, shown(None), "samples of a replica in a step"
        )
