"""Megatron-LM's command line -> sections of a scenario: a file of arguments as text, shell script or YAML.

``--name value`` or ``name: value``; of a shell script its simple variables are put in. What Megatron takes for granted
where nothing is said (learned positions, biases, GELU, tied embeddings, dropout 0.1) is taken here too. Arguments that
change no time (data, logging, learning rate) are passed over; any other that is not understood is refused.
Source: megatron/training/arguments.py, core v0.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.workloads.arguments import tokenizers
from prestep.workloads.arguments.files import listed, read_shell, read_yaml, repeated
from prestep.workloads.arguments.names import (
    COMPRESSED,
    LATENT,
    LATENT_DEFAULTS,
    MODEL_DEFAULTS,
    NUMBERS,
    OTHERS,
    PASSED,
    REALS,
    SWITCH_DEFAULTS,
    SWITCHES,
    TEXTS,
    WORDS,
)
from prestep.workloads.models.indexed import pattern_of

Sections = dict[str, dict[str, Any]]
Given = Mapping[str, list[str]]
NEEDED = ("num-layers", "hidden-size", "num-attention-heads")
POSITIONS, CHOSEN = 2048, 2  # learned positions, and experts of a token
STREAMS = 4  # residual streams of hyper-connections
VARIANT = "experimental-attention-variant"
GATED_BLOCK = 64  # the width of a gated feed-forward layer is a multiple of it
#: Entries of GPT-2's vocabulary as Megatron pads it, for files that say nothing of one.
UNSAID = 50304
#: Arguments that say the tokenizer: its kind, then its name.
TOKENIZER = ("tokenizer-type", "tokenizer-model", "tokenizer-name-or-path")


#: Keys of [model] that arguments decide beside others.
OF_MODEL = {
    **LATENT,
    "swiglu": "gated",
    "quick-geglu": "gated",
    "num-query-groups": "kv_heads",
    "max-position-embeddings": "max_positions",
    "moe-router-topk": "experts_per_token",
    "num-residual-streams": "streams",
    "window-size": "window",
}


@dataclass(frozen=True)
class Translated:
    """What arguments stand for.

    Attributes
    ----------
    sections : mapping
        Sections of a scenario.
    mistakes : tuple of Mistake
        What is wrong.
    unknown : tuple of Mistake
        Arguments that nobody knows.
    assumed : tuple of str
        What was concluded where no argument says it.
    needs : tuple of Mistake
        What is not said and nobody can conclude: the vocabulary.
    """

    sections: Sections
    mistakes: tuple[Mistake, ...]
    unknown: tuple[Mistake, ...]
    assumed: tuple[str, ...] = ()
    needs: tuple[Mistake, ...] = ()


def sections_of(text: str, where: str) -> Sections:
    """The sections ``model``, ``training``, ``parallel`` and ``megatron`` that a file of arguments stands for.

    Raises
    ------
    InputError
        With every argument that is not understood, lacks its value or contradicts another.
    """
    made = translated(given_in(text, where), where)
    if made.mistakes or made.unknown or made.needs:
        raise InputError((*made.unknown, *made.mistakes, *made.needs))
    return made.sections


def given_in(text: str, where: str) -> dict[str, list[str]]:
    """The arguments of a file with their words."""
    is_yaml = Path(where).suffix in (".yaml", ".yml")
    return read_yaml(text) if is_yaml else read_shell(text, where)


def translated(given: Given, where: str, named: bool = False) -> Translated:
    """What arguments stand for; of a model that is `named` elsewhere only what they change."""
    mistakes: list[Mistake] = []
    unknown: list[Mistake] = []
    made: Sections = {
        "model": {} if named else {"kind": "transformer"},
        "training": {},
        "parallel": {},
        "megatron": dict(SWITCH_DEFAULTS),
    }
    for name, values in given.items():
        try:
            _one(name, values, made, where)
        except InputError as error:
            mistakes += error.mistakes
        except LookupError:
            unknown.append(_unknown(name, where))
    for missing in () if named else NEEDED:
        if missing not in given:
            mistakes.append(Mistake(where, f"--{missing}", "nothing", "a whole number"))
    if not mistakes:
        try:
            if not named:
                _model(given, made["model"], where)
            _parallel(given, made, where)
        except InputError as error:
            mistakes += error.mistakes
    assumed, needs = ((), ()) if named else _vocabulary(given, made["model"], where)
    return Translated(made, tuple(mistakes), tuple(unknown), assumed, needs)


def _vocabulary(
    given: Given, model: dict[str, Any], where: str
) -> tuple[tuple[str, ...], tuple[Mistake, ...]]:
    """Takes the vocabulary from the tokenizer where no argument has its size; what was concluded, or is missing."""
    if "vocab" in model:
        return (), ()
    kind = " ".join(given.get(TOKENIZER[0], []))
    names = [" ".join(given[word]) for word in TOKENIZER[1:] if word in given]
    entries = tokenizers.vocabulary_of(kind, *names)
    if entries is not None:
        model["vocab"], source = entries
        return (f"a vocabulary of {entries[0]:,}, which {source} has",), ()
    tokenizer = " ".join(filter(None, (kind, *names)))
    if not tokenizer:
        model["vocab"] = UNSAID
        hint = "--set model.vocab=N says another"
        return (
            f"neither a vocabulary nor a tokenizer is said: {UNSAID:,}, GPT-2's; {hint}",
        ), ()
    hint = "--vocab-size in the file, or --set model.vocab=N, says its entries"
    expected = "the size of the vocabulary: nobody knows this tokenizer's"
    return (), (
        Mistake(where, "--vocab-size", f"nothing ({tokenizer})", expected, hint),
    )


def key_of(name: str) -> str:
    """The key of a scenario that an argument decides, as section.key; "" for one that is read beside others."""
    if name in SWITCHES:
        return SWITCHES[name][0]
    if name in WORDS:
        return WORDS[name][0]
    if name in OF_MODEL:
        return f"model.{OF_MODEL[name]}"
    return str((NUMBERS | REALS | TEXTS).get(name, ""))


def _one(name: str, values: list[str], made: Sections, where: str) -> None:
    """Writes one argument to its section."""
    entry = _entry(name, values, where)
    if entry is not None:
        place, value = entry
        section, _, key = place.partition(".")
        made[section][key] = value


def _entry(name: str, values: list[str], where: str) -> tuple[str, Any] | None:
    """The key of a scenario that an argument decides by itself, as section.key, and its value.

    Raises
    ------
    LookupError
        For an argument that nobody knows.
    """
    if name in NUMBERS:
        return NUMBERS[name], _number(name, values, where, int)
    if name in REALS:
        return REALS[name], _number(name, values, where, float)
    if name in TEXTS:
        return TEXTS[name], " ".join(values)
    if name in SWITCHES:
        return None if _off(values) else SWITCHES[name]
    if name in WORDS:
        place, words = WORDS[name]
        return place, _word(name, values, words, where)
    if name not in OTHERS and name not in LATENT and not PASSED.match(name):
        raise LookupError(name)
    return None


def _word(name: str, values: list[str], words: Mapping[str, Any], where: str) -> Any:
    """What one of the words that an argument takes stands for."""
    word = " ".join(values)
    if word not in words:
        expected = f"one of {', '.join(words)}"
        raise InputError.of(where, f"--{name}", word or "nothing", expected)
    return words[word]


def _unknown(name: str, where: str) -> Mistake:
    """An argument that is not understood."""
    names = [*NUMBERS, *REALS, *TEXTS, *SWITCHES, *WORDS, *OTHERS, *LATENT]
    hint = did_you_mean(name, names) or "leave it out if no time depends on it"
    expected = "one of Megatron-LM's that is simulated"
    return Mistake(where, f"--{name}", "an argument", expected, hint)


def _number(
    name: str, values: list[str], where: str, kind: Callable[[str], Any]
) -> Any:
    try:
        return kind(values[0])
    except (IndexError, ValueError):
        what = "a whole number" if kind is int else "a number"
        raise InputError.of(
            where, f"--{name}", " ".join(values) or "nothing", what
        ) from None


def _off(values: list[str]) -> bool:
    """Whether a switch is written out as false."""
    return values[:1] in (["false"], ["False"])


def _said(given: Given, name: str) -> bool:
    return name in given and not _off(given[name])


def _model(given: Given, model: dict[str, Any], where: str) -> None:
    """Keys of [model] that several arguments decide, and Megatron's defaults."""
    _feed_forward(given, model)
    for key, value in MODEL_DEFAULTS.items():
        model.setdefault(key, value)
    if model["positions"] == "learned":
        name = "max-position-embeddings"
        model["max_positions"] = _number_or(given, name, POSITIONS, where)
    _attention(given, model, where)
    _windows(given, model, where)
    if "experts" in model:
        name = "moe-router-topk"
        model["experts_per_token"] = _number_or(given, name, CHOSEN, where)
        model |= _pattern(given.get("moe-layer-freq", ["1"]), model["layers"], where)
        _shared(given, model, where)


def _number_or(given: Given, name: str, default: int, where: str) -> int:
    """A whole number, or what Megatron takes where it is not given."""
    if name not in given:
        return default
    return int(_number(name, given[name], where, int))


def _feed_forward(given: Given, model: dict[str, Any]) -> None:
    """Activation and width; a gated layer without one has as many parameters as another, in whole blocks."""
    gated = _said(given, "swiglu") or _said(given, "quick-geglu")
    model["gated"] = gated
    model.setdefault("activation", "silu" if gated else "gelu")
    plain = 4 * model["hidden"]
    width = int(plain * 2 / 3 / GATED_BLOCK) * GATED_BLOCK if gated else plain
    model.setdefault("ffn", width)


def _attention(given: Given, model: dict[str, Any], where: str) -> None:
    """Groups of queries, or the sizes of latent attention."""
    groups = "num-query-groups"
    if _said(given, "group-query-attention") and groups in given:
        model["kv_heads"] = int(_number(groups, given[groups], where, int))
    if _said(given, "enable-hyper-connections"):
        name = "num-residual-streams"
        model["streams"] = _number_or(given, name, STREAMS, where)
    variant = given.get(VARIANT)
    if variant and variant != ["dsa"]:
        _compressed(given, model, where)
    elif _said(given, "multi-latent-attention"):
        model |= LATENT_DEFAULTS
        for name, key in LATENT.items():
            if name in given:
                model[key] = int(_number(name, given[name], where, int))
        model.pop("qk_norm", None)  # latent attention norms its compressed states
    if variant:
        _indexer(given, model, where, variant == ["dsa"])


def _indexer(given: Given, model: dict[str, Any], where: str, tokens: bool) -> None:
    """Which layers have an indexer of `tokens`, whose kernels it runs, and its loss."""
    backend, loss = "dsa-kernel-backend", "dsa-indexer-loss-coeff"
    if tokens:
        fused = dict.fromkeys(("cudnn", "tilelang"), True)
        _word(backend, given.get(backend, ["none"]), fused, where)
        names = "dsa-indexer-topk-freq", "dsa-indexer-skip-topk-offset"
        every, first = (max(_number_or(given, name, 1, where), 1) for name in names)
        model["index_pattern"] = pattern_of(model["layers"], every, first) or None
    sparse = "dsa-indexer-use-sparse-loss"
    if loss in given and not _said(given, sparse):
        expected = f"beside it --{sparse}: a loss over all keys is not simulated"
        found = " ".join(given[loss])
        raise InputError.of(where, f"--{loss}", found, expected)


def _compressed(given: Given, model: dict[str, Any], where: str) -> None:
    """Attention over compressed keys, with a ratio for each layer."""
    _word(VARIANT, given[VARIANT], {"dsv4_hybrid": True, "dsa": True}, where)
    for argument, key in COMPRESSED.items():
        if argument in given:
            model[key] = int(_number(argument, given[argument], where, int))
    name = "csa-compress-ratios"
    ratios = repeated("".join(given.get(name, [])))
    if not ratios:
        expected = "a ratio for each layer, as in ([0,0,4]+[128,4]*20+[0])"
        raise InputError.of(where, f"--{name}", "nothing", expected)
    layers = model["layers"] + model.get("mtp_layers", 0)
    model["compress_ratios"] = ratios[:layers]
    model["kv_heads"] = 1
    model.pop("qk_norm", None)  # it norms its compressed states


def _windows(given: Given, model: dict[str, Any], where: str) -> None:
    """How far attention looks back, in which layers, and sinks (gpt-oss)."""
    if "activation-func-clamp-value" in given and "experts" in model:
        model["clamped"] = True
    name = "window-size"
    if name not in given:
        return
    text = " ".join(given[name]).strip("\"'()[]")
    found = re.fullmatch(r"(\d{1,9})[,\s]+(0|-1)", text)
    if found is None:
        expected = "tokens to the left and 0, such as 127,0"
        raise InputError.of(where, f"--{name}", text or "nothing", expected)
    model["window"] = int(found[1]) + 1
    every = _whole_every(given, model["layers"], where)
    if every == 1:
        model.pop("window")
    elif every:
        model["window_every"] = every


def _whole_every(given: Given, count: int, where: str) -> int:
    """Every how many of `count` layers one sees all tokens; 0: none does. A list has 1 where there is a window."""
    name = "window-attn-skip-freq"
    words = given.get(name, [])
    if not words:
        return 0
    text = " ".join(words).strip("\"'")
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    layers = listed(text) or [int(n) for n in words if n in ("0", "1")]
    every = layers.index(0) + 1 if 0 in layers else len(layers) + 1
    regular = [int((at + 1) % every > 0) for at in range(len(layers))]
    if len(layers) != count or layers != regular:
        expected = (
            f"a number, or a list of {count} ones with a zero at every n-th place"
        )
        raise InputError.of(where, f"--{name}", text, expected)
    return every if 0 in layers else 0


def _shared(given: Given, model: dict[str, Any], where: str) -> None:
    """Shared experts are as wide as so many others."""
    name = "moe-shared-expert-intermediate-size"
    if name not in given:
        return
    width = _number(name, given[name], where, int)
    one = model.get("moe_ffn", model["ffn"])
    if width % one:
        expected = f"a multiple of an expert's width, {one}"
        raise InputError.of(where, f"--{name}", str(width), expected)
    model["shared_experts"] = width // one


def _pattern(values: list[str], layers: int, where: str) -> dict[str, int]:
    """Which layers have experts: all (1), or a list such as ([0]*3+[1]*58) of dense ones first."""
    text = "".join(values).strip("\"'")
    if text.isdecimal():
        if int(text) == 1:
            return {}
        expected = "1, or a list with dense layers first"
        raise InputError.of(
            where,
            "--moe-layer-freq",
            text,
            expected,
            "write [model] moe_every in the scenario",
        )
    found = listed(text)
    dense = found.index(1) if 1 in found else len(found)
    if len(found) != layers or 0 in found[dense:]:
        expected = f"{layers} zeros and ones, dense layers first"
        raise InputError.of(where, "--moe-layer-freq", text, expected)
    return {"dense_layers": dense} if dense else {}


def _parallel(given: Given, made: Sections, where: str) -> None:
    parallel, model = made["parallel"], made["model"]
    name = "num-layers-per-virtual-pipeline-stage"
    if name in given and "layers" not in model:
        expected = (
            "--num-virtual-stages-per-pipeline-rank, where the layers are not said"
        )
        raise InputError.of(where, f"--{name}", " ".join(given[name]), expected)
    if name in given:
        per, stages = _number(name, given[name], where, int), parallel.get("pp", 1)
        ends = ("account_for_embedding", "account_for_loss")
        layers = model["layers"] + sum(bool(made["megatron"].get(key)) for key in ends)
        if per < 1 or layers % (per * stages):
            expected = f"a divisor of {layers} layers over {stages} ranks"
            raise InputError.of(where, f"--{name}", str(per), expected)
        parallel["vpp"] = layers // (per * stages)
    if parallel.get("vpp", 1) > 1:
        parallel["schedule"] = "interleaved"
    made["training"]["framework"] = "megatron"
    made["training"].setdefault("precision", "bf16")
