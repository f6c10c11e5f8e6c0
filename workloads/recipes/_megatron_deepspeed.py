"""Arguments of Megatron-DeepSpeed (a fork of Megatron-LM): its own words for Megatron's, and DeepSpeed's engine.

Source: megatron/arguments.py and deepspeed's add_config_arguments, Megatron-DeepSpeed of 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prestep.workloads.recipes import _companions, deepspeed
from prestep.workloads.recipes._documents import Document, Entry, beneath, read_json
from prestep.workloads.recipes._reading import Recipe

Given = dict[str, list[str]]
#: Its words -> Megatron's.
WORDS = {
    "moe-expert-parallel-size": "expert-model-parallel-size",
    "topk": "moe-router-topk",
    "ds-sequence-parallel-size": "context-parallel-size",
}
#: Switches of old that run whole layers again.
AGAIN = ("checkpoint-activations", "activations-checkpoint-method")
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
WAYS = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
#: Arguments that this module reads.
READ = {
    *WORDS,
    *AGAIN,
    *("deepspeed", "zero-stage", "num-key-value-heads", "deepspeed_config"),
}


def of_megatron(given: Given) -> Given:
    """The arguments by Megatron's names; each of Megatron's own comes before."""
    made = {name: values for name, values in given.items() if name not in READ}
    for theirs, ours in WORDS.items():
        if given.get(theirs):
            made.setdefault(ours, given[theirs])
    if any(name in given for name in AGAIN):
        made.setdefault("recompute-granularity", ["full"])
    if "num-key-value-heads" in given:
        made.setdefault("group-query-attention", [])
        made.setdefault("num-query-groups", given["num-key-value-heads"])
    if "normalization" in made:
        word = " ".join(made["normalization"])
        made["normalization"] = [NORMS.get(word, word)]
    if made.get("num-experts") == ["1"]:
        for name in ("num-experts", "moe-router-topk", "expert-model-parallel-size"):
            made.pop(name, None)
    return made


def engine(draft: Recipe, given: Mapping[str, list[str]], where: str) -> None:
    """DeepSpeed around Megatron's layers, where the script asks for it; stage 1 where it says none."""
    if "deepspeed" not in given:
        return
    draft.set("training.framework", "deepspeed", "deepspeed")
    said = " ".join(given.get("zero-stage", [])) or "1"
    stage = said.removesuffix(".0")
    if "$" in said:
        key, hint = (
            "parallel.data_parallel",
            "--set parallel.data_parallel=zero1 says it",
        )
        draft.need(key, where, "--zero-stage", said, "0, 1, 2 or 3", hint)
    elif stage in WAYS:
        draft.set("parallel.data_parallel", WAYS[stage], "zero-stage")
    else:
        draft.wrong(where, "--zero-stage", said, "0, 1, 2 or 3")
    if "zero-stage" not in given:
        draft.assume("zero-stage is not said: 1, Megatron-DeepSpeed's default")
    experts = given.get("num-experts", [])
    if len(experts) > 1:
        what = "layers with different numbers of experts"
        draft.lose(where, "num-experts", " ".join(experts), what)
    if given.get("ds-sequence-parallel-size"):
        draft.set("parallel.ring_degree", 1, "ds-sequence-parallel-size")


def configured(
    draft: Recipe,
    given: Mapping[str, list[str]],
    document: Document,
    engines: Sequence[Document],
) -> None:
    """The engine's file, which was given or lies beside the script; one that the script writes itself is not there."""
    if "deepspeed" not in given:
        for one in engines:
            expected = "--deepspeed in the script, without which nothing reads the file"
            draft.wrong(str(one.path), "", "a configuration of DeepSpeed", expected)
        return
    key = "deepspeed_config"
    name = " ".join(given.get(key, []))
    said = Document(document.path, "shell", {key: Entry(name)})
    if not engines and (not name or beneath(document.path, name) is None):
        return
    stage = draft.get("parallel.data_parallel") if "zero-stage" in given else None
    precision = draft.settings["training.precision"]
    for one in _companions.named(draft, said, key, engines, read_json):
        deepspeed.apply(draft, one)
        way = draft.get("parallel.data_parallel")
        if stage not in (None, way):
            key = "zero_optimization.stage"
            expected = f"{stage}, as --zero-stage has it"
            draft.wrong(one, key, way, expected)
        if draft.settings["training.precision"].said == "default":
            draft.settings["training.precision"] = precision
        draft.assumed.remove(deepspeed.MEGATRONS)  # here they are Megatron's indeed
    deepspeed.settle_offload(draft)
