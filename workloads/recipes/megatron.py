"""Megatron-LM's arguments: shell scripts, YAML with ``--name: value``, and files of arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prestep.workloads.arguments.megatron import (
    NEEDED,
    TOKENIZER,
    given_in,
    key_of,
    translated,
)
from prestep.workloads.arguments.names import (
    LATENT,
    NUMBERS,
    OTHERS,
    PASSED,
    REALS,
    SWITCHES,
    TEXTS,
    WORDS,
)
from prestep.workloads.recipes import (
    _companions,
    _megatron_deepspeed,
    _models,
    _pipeline,
    deepspeed,
    mlperf,
)
from prestep.workloads.recipes._core import (
    plain_ends,
    run_again,
    settle_fuser,
    settle_offload,
    without_fp8,
)
from prestep.workloads.recipes._documents import Document, Entry
from prestep.workloads.recipes._reading import Recipe
from prestep.workloads.recipes._rules import decides, rules, written

#: How people know such a recipe.
LOOKS = "a script or YAML with --num-layers or --tensor-model-parallel-size"
RULES = Path(__file__).with_suffix(".toml")
#: Megatron-DeepSpeed's script has its engine's file beside it.
BESIDE = (_companions.ENGINE,)
#: Arguments that no other program has.
OWN = r"--(num-layers|hidden-size|tensor-model-parallel-size|num-attention-heads)\b"
KNOWN = {*NUMBERS, *TEXTS, *LATENT, *REALS, *SWITCHES, *WORDS, *OTHERS, *TOKENIZER}
FP8 = {"delayed": "delayed", "tensorwise": "dynamic", "mxfp8": "mx"}


def recognise(document: Document) -> bool:
    if document.kind == "shell":
        return bool(re.search(OWN, document.text)) and not mlperf.recognise(document)
    return document.kind == "yaml" and any(
        re.search(OWN, key) for key in document.entries
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """The arguments that the file passes."""
    draft = Recipe("megatron", str(document.path))
    given = given_in(document.text, str(document.path))
    hosts = _first(given, "nnodes")
    if hosts.isdecimal():
        draft.hosts = int(hosts) or None
    arguments(draft, given, document)
    engines = [one for one in beside if deepspeed.recognise(one)]
    _megatron_deepspeed.configured(draft, given, document, engines)
    return draft


def arguments(
    draft: Recipe, given: dict[str, list[str]], document: Document, named: bool = False
) -> None:
    """What arguments come to: those of Megatron's table, then the rules of others."""
    where, of_fork = str(document.path), given
    given, every = _dense_between(_hybrid(_megatron_deepspeed.of_megatron(given)))
    if len(given.get("num-experts", [])) > 1:
        given["num-experts"] = given["num-experts"][:1]  # told of by the engine
    given = _without_open(draft, given, where)
    named = named or _unsized(draft, given, where)
    table = {name: values for name, values in given.items() if name in KNOWN}
    if _parts(given):
        table.pop("recompute-modules", None)  # read below
    _by_table(draft, table, where, named)
    _by_rules(draft, given, document)
    if every > 1:
        draft.set("model.moe_every", every, "moe-layer-freq")
    _megatron_deepspeed.engine(draft, of_fork, where)
    _scans(draft)
    _fp8(draft, given)
    _recomputed(draft, given)
    _sharded(draft, given, where)
    _chunks(draft, given)
    _ends(draft, given, where)
    _pipeline.uneven(draft)
    _settle(draft)


def _settle(draft: Recipe) -> None:
    """What follows from several arguments together, or where none says it."""
    if draft.get("parallel.data_parallel") is None:
        draft.set("parallel.data_parallel", "ddp")
    if draft.get("parallel.data_parallel") != "zero1":
        draft.drop("megatron.overlap_param_gather")
    settle_offload(draft)
    settle_fuser(draft)
    without_fp8(draft)


def _by_table(
    draft: Recipe, table: dict[str, list[str]], where: str, named: bool
) -> None:
    """What the arguments that a scenario's own reader knows come to."""
    made = translated(table, where, named)
    draft.mistakes += made.mistakes
    for one in made.needs:
        draft.need("model.vocab", one.where, one.key, one.found, one.expected, one.hint)
    for text in made.assumed:
        draft.assume(text)
    said = {
        key_of(name): f"--{' '.join([name, *words])}" for name, words in table.items()
    }
    for section, keys in made.sections.items():
        for key, value in keys.items():
            draft.set(f"{section}.{key}", value, said.get(f"{section}.{key}", ""))


def _by_rules(draft: Recipe, given: dict[str, list[str]], document: Document) -> None:
    """What the other arguments come to, by the rules; some are passed over that decide nothing."""
    others = {
        name.replace("-", "_"): Entry(_value(values), 0)
        for name, values in given.items()
        if name not in KNOWN
    }
    passed = [
        name
        for name, entry in others.items()
        if PASSED.match(name.replace("_", "-")) and not decides(name, entry.value)
    ]
    draft.passed += passed
    strange = {name: entry for name, entry in others.items() if name not in passed}
    rest = Document(document.path, document.kind, strange)
    draft.read(rest, rules(RULES))
    plain_ends(draft, rest)


def _without_open(
    draft: Recipe, given: dict[str, list[str]], where: str
) -> dict[str, list[str]]:
    """The arguments without those whose numbers only a command or the job's environment says: the reader may."""
    numbers = NUMBERS | {"max-position-embeddings": "model.max_positions"}
    open_ones = [name for name in numbers if name in given and not given[name]]
    for name in open_ones:
        key = numbers[name]
        hint = f"the script's environment says it, or --set {key}=N"
        draft.need(key, where, f"--{name}", "a variable", "a whole number", hint)
    return {name: values for name, values in given.items() if name not in open_ones}


def _unsized(draft: Recipe, given: dict[str, list[str]], where: str) -> bool:
    """Whether the model's sizes are not all said, so that its name has to be."""
    missing = [f"--{name}" for name in NEEDED if name not in given]
    if not missing:
        return False
    draft.drop(*(f"model.{key}" for key in ("layers", "hidden", "heads")))
    for name in NEEDED:
        draft.needs.pop(NUMBERS[name], None)
    _models.missing(draft, "nothing", ", ".join(missing), where)
    return True


def _value(values: list[str]) -> Any:
    """Words of an argument; one without words is a switch."""
    return " ".join(values) if values else True


def _first(given: dict[str, list[str]], name: str) -> str:
    return written(" ".join(given.get(name, [])))


def _fp8(draft: Recipe, given: dict[str, list[str]]) -> None:
    if _first(given, "fp8") in ("hybrid", "e4m3"):
        draft.set("training.precision", "fp8", "fp8")
    if draft.get("training.precision") == "fp8":
        scaling = FP8.get(_first(given, "fp8-recipe"))
        if scaling:
            draft.set("megatron.fp8_scaling", scaling, "fp8-recipe")


def _recomputed(draft: Recipe, given: dict[str, list[str]]) -> None:
    """So many layers whole, where the method is block; parts of a layer that selective recomputation names."""
    count = _first(given, "recompute-num-layers")
    if _first(given, "recompute-granularity") == "full":
        if _first(given, "recompute-method") == "block" and count.isdecimal():
            if int(count):
                draft.set(
                    "megatron.recompute_num_layers", int(count), "recompute-num-layers"
                )
            draft.set("training.recompute", "none", "recompute-method")
        return
    if parts := _parts(given):
        run_again(draft, parts, "recompute-modules", draft.where)


def _parts(given: dict[str, list[str]]) -> list[str]:
    """Parts of a layer that run again, unless they are the attention's products alone, which Megatron's table has."""
    words = " ".join(given.get("recompute-modules", [])).replace(",", " ").split()
    parts = [word.strip("[]'\"") for word in words]
    return [] if set(parts) <= {"core_attn"} else [part for part in parts if part]


def _scans(draft: Recipe) -> None:
    """Sizes of Mamba-2 belong to layers of it; their heads are as wide as twice the model where nothing is said."""
    if "M" not in draft.get("model.layer_pattern", ""):
        draft.drop(*[key for key in draft.settings if key.startswith("model.mamba_")])
    elif draft.get("model.mamba_heads") is None and draft.get("model.hidden"):
        width = draft.get("model.mamba_head_dim", 64)
        heads = max(1, 2 * draft.get("model.hidden") // width)
        draft.set("model.mamba_heads", heads)
        draft.assume(f"{heads} heads of Mamba-2: twice the model's width")


def _dense_between(given: dict[str, list[str]]) -> tuple[dict[str, list[str]], int]:
    """Every n-th layer with experts: the arguments without that, and n; it does not matter which of n they are."""
    name = "moe-layer-freq"
    text = "".join(given.get(name, [])).strip("\"'").replace(" ", "")
    found = re.fullmatch(r"\(?\[((?:0,)*1(?:,0)*)\]\*\d+\)?", text)
    every = int(text) if text.isdecimal() else len(found[1].split(",")) if found else 1
    if every > 1:
        given = {key: values for key, values in given.items() if key != name}
    return given, max(1, every)


def _hybrid(given: dict[str, list[str]]) -> dict[str, list[str]]:
    """A pattern of layers says how many there are; bars in it cut the pipeline, and a slash ends it."""
    for name in ("hybrid-layer-pattern", "hybrid-override-pattern"):
        pattern = "".join(given.get(name, [])).partition("/")[0].replace("|", "")
        if pattern and "num-layers" not in given:
            return {**given, name: [pattern], "num-layers": [str(len(pattern))]}
    return given


def _sharded(draft: Recipe, given: dict[str, list[str]], where: str) -> None:
    """Fully sharded parameters, Megatron's own way or PyTorch's."""
    for name in ("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2"):
        if name in given and _first(given, name) not in ("false", "null"):
            draft.set("parallel.data_parallel", "fsdp", name)
            strategy = _first(given, "data-parallel-sharding-strategy")
            if strategy not in ("empty", "optim_grads_params", "null"):
                draft.lose(
                    where,
                    "data-parallel-sharding-strategy",
                    strategy,
                    "shards of the optimizer alone",
                )


def _chunks(draft: Recipe, given: dict[str, list[str]]) -> None:
    chunks = _first(given, "virtual-pipeline-model-parallel-size")
    if chunks.isdecimal() and int(chunks) > 1 and draft.get("parallel.pp", 1) > 1:
        draft.set("parallel.vpp", int(chunks), "virtual-pipeline-model-parallel-size")
        draft.set("parallel.schedule", "interleaved")


FIRST, LAST = (f"decoder-{end}-pipeline-num-layers" for end in ("first", "last"))


def _ends(draft: Recipe, given: dict[str, list[str]], where: str) -> None:
    """The first and the last rank of a pipeline with a number of layers of their own."""
    counts = [_first(given, name) for name in (FIRST, LAST)]
    first, last = (int(text) if text.isdecimal() else None for text in counts)
    _pipeline.ends(draft, first, last, FIRST if first is not None else LAST, where)
