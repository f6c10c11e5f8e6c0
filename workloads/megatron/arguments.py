"""Megatron-LM's command line -> sections of a scenario: a file of arguments as text, shell script or YAML.

``--name value`` or ``name: value``; of a shell script its simple variables are put in. What Megatron takes for granted
where nothing is said (learned positions, biases, GELU, tied embeddings, dropout 0.1) is taken here too. Arguments that
change no time (data, logging, learning rate) are passed over; any other that is not understood is refused.
Source: megatron/training/arguments.py, core v0.13.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake, did_you_mean
from workloads.megatron.argument_names import (
    LATENT,
    NUMBERS,
    OTHERS,
    PASSED,
    REALS,
    SWITCHES,
    WORDS,
)

Sections = dict[str, dict[str, Any]]
Given = Mapping[str, list[str]]


def sections_of(text: str, where: str) -> Sections:
    """The sections ``model``, ``training``, ``parallel`` and ``megatron`` that a file of arguments stands for.

    Raises
    ------
    InputError
        With every argument that is not understood, lacks its value or contradicts another.
    """
    given = (
        _read_yaml(text)
        if Path(where).suffix in (".yaml", ".yml")
        else _read_shell(text)
    )
    mistakes: list[Mistake] = []
    made: Sections = {
        "model": {"kind": "transformer"},
        "training": {},
        "parallel": {},
        "megatron": _taken_for_granted(),
    }
    for name, values in given.items():
        try:
            _one(name, values, made, where)
        except InputError as error:
            mistakes += error.mistakes
    for missing in ("num-layers", "hidden-size", "num-attention-heads"):
        if missing not in given:
            mistakes.append(Mistake(where, f"--{missing}", "nothing", "a whole number"))
    if mistakes:
        raise InputError(mistakes)
    _model(given, made["model"], where)
    _parallel(given, made, where)
    return made


def _taken_for_granted() -> dict[str, Any]:
    return {
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "cross_entropy_fusion": False,
        "moe_grouped_gemm": False,
        "moe_permute_fusion": False,
        "moe_token_dispatcher": "allgather",
    }


def _one(name: str, values: list[str], made: Sections, where: str) -> None:
    """Writes one argument to its section."""

    def put(place: str, value: Any) -> None:
        section, _, key = place.partition(".")
        made[section][key] = value

    if name in NUMBERS:
        put(NUMBERS[name], _number(name, values, where, int))
    elif name in REALS:
        put(REALS[name], _number(name, values, where, float))
    elif name in SWITCHES:
        if values[:1] not in (["false"], ["False"]):
            put(*SWITCHES[name])
    elif name in WORDS:
        place, known = WORDS[name]
        word = values[0] if len(values) == 1 else " ".join(values)
        if word not in known:
            raise InputError(
                Mistake(
                    where, f"--{name}", word or "nothing", f"one of {', '.join(known)}"
                )
            )
        put(place, known[word])
    elif name not in OTHERS and name not in LATENT and not PASSED.match(name):
        known_names = [*NUMBERS, *REALS, *SWITCHES, *WORDS, *OTHERS, *LATENT]
        hint = (
            did_you_mean(name, known_names) or "leave it out if no time depends on it"
        )
        raise InputError(
            Mistake(
                where,
                f"--{name}",
                "an argument",
                "one of Megatron-LM's that is simulated",
                hint,
            )
        )


def _number(
    name: str, values: list[str], where: str, kind: Callable[[str], Any]
) -> Any:
    try:
        return kind(values[0])
    except (IndexError, ValueError):
        what = "a whole number" if kind is int else "a number"
        raise InputError(
            Mistake(where, f"--{name}", " ".join(values) or "nothing", what)
        ) from None


def _said(given: Given, name: str) -> bool:
    return name in given and given[name][:1] not in (["false"], ["False"])


def _model(given: Given, model: dict[str, Any], where: str) -> None:
    """Keys of [model] that several arguments decide, and Megatron's defaults."""

    def number(name: str) -> int:
        return int(_number(name, given[name], where, int))

    hidden = model["hidden"]
    gated = _said(given, "swiglu")
    model["gated"] = gated
    model.setdefault("activation", "silu" if gated else "gelu")
    model.setdefault("ffn", int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    for key, value in (
        ("norm", "layer"),
        ("tied_embeddings", True),
        ("bias", True),
        ("positions", "learned"),
        ("vocab", 50304),
    ):
        model.setdefault(key, value)
    if model["positions"] == "learned":
        model["max_positions"] = (
            number("max-position-embeddings")
            if "max-position-embeddings" in given
            else 2048
        )
    if _said(given, "group-query-attention") and "num-query-groups" in given:
        model["kv_heads"] = number("num-query-groups")
    if _said(given, "multi-latent-attention"):
        model |= {
            "kv_lora_rank": 32,
            "head_dim": 128,
            "rope_head_dim": 64,
            "v_head_dim": 128,
        }
        model |= {key: number(name) for name, key in LATENT.items() if name in given}
        model.pop("qk_norm", None)  # latent attention norms its compressed states
    if "experts" in model:
        model["experts_per_token"] = (
            number("moe-router-topk") if "moe-router-topk" in given else 2
        )
        model |= _pattern(given.get("moe-layer-freq", ["1"]), model["layers"], where)
        _shared(given, model, where)


def _shared(given: Given, model: dict[str, Any], where: str) -> None:
    name = "moe-shared-expert-intermediate-size"
    if name not in given:
        return
    width, one = (
        _number(name, given[name], where, int),
        model.get("moe_ffn", model["ffn"]),
    )
    if width % one:
        raise InputError(
            Mistake(
                where,
                f"--{name}",
                str(width),
                f"a multiple of an expert's width, {one}",
            )
        )
    model["shared_experts"] = width // one


def _pattern(values: list[str], layers: int, where: str) -> dict[str, int]:
    """Which layers have experts: all (1), or a list such as ([0]*3+[1]*58) of dense ones first."""
    text = "".join(values).strip("\"'")
    if text.isdigit():
        if int(text) == 1:
            return {}
        expected = "1, or a list with dense layers first"
        raise InputError(
            Mistake(
                where,
                "--moe-layer-freq",
                text,
                expected,
                "write [model] moe_every in the scenario",
            )
        )
    found: list[int] = []
    for inner, times in re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?", text):
        found += [int(n) for n in inner.split(",") if n.strip()] * int(times or 1)
    dense = found.index(1) if 1 in found else len(found)
    if len(found) != layers or 0 in found[dense:]:
        expected = f"{layers} zeros and ones, dense layers first"
        raise InputError(Mistake(where, "--moe-layer-freq", text, expected))
    return {"dense_layers": dense} if dense else {}


def _parallel(given: Given, made: Sections, where: str) -> None:
    parallel, model = made["parallel"], made["model"]
    name = "num-layers-per-virtual-pipeline-stage"
    if name in given:
        per, stages = _number(name, given[name], where, int), parallel.get("pp", 1)
        if per < 1 or model["layers"] % (per * stages):
            expected = f"a divisor of {model['layers']} layers over {stages} ranks"
            raise InputError(Mistake(where, f"--{name}", str(per), expected))
        parallel["vpp"] = model["layers"] // (per * stages)
    if parallel.get("vpp", 1) > 1:
        parallel["schedule"] = "interleaved"
    made["training"]["framework"] = "megatron"
    made["training"].setdefault("precision", "bf16")


def _read_yaml(text: str) -> dict[str, list[str]]:
    """Lines ``--name: value`` or ``name: value``; names in capitals are variables or headings."""
    given: dict[str, list[str]] = {}
    for line in text.splitlines():
        found = re.match(
            r"\s*(?:-\s+)?['\"]?(-{0,2})([A-Za-z][\w-]*)['\"]?\s*:\s*(.*)$",
            line.split(" #")[0],
        )
        if not found or found[2].isupper() or (not found[3].strip() and not found[1]):
            continue
        value = found[3].strip().strip("'\"")
        given[found[2].replace("_", "-")] = (
            [] if value.lower() in ("", "true") else value.split()
        )
    return given


def _read_shell(text: str) -> dict[str, list[str]]:
    """Every ``--name value ...`` of a script, with its own variables put in."""
    given: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in _shell_words(text):
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            current = given.setdefault(name.replace("_", "-"), [])
            current[:] = [value] if value else []
        elif "=" in word or word in ("&&", "|", ";", "\\") or word.startswith("$"):
            current = None
        elif current is not None and not (word in "()" and not current):
            current.append(word)
    return {name: _without_brackets(values) for name, values in given.items()}


def _shell_words(text: str) -> list[str]:
    """Words of a script without its comments, with its own variables put in; brackets are words of their own."""
    lines = re.sub(r"\\\s*\n", " ", text)
    lines = "\n".join(re.sub(r"(^|\s)#.*$", "", line) for line in lines.splitlines())
    script = _put_in(lines, _variables(lines))
    try:
        words = shlex.split(script.replace("(", " ( ").replace(")", " ) "))
    except ValueError:
        words = script.replace('"', " ").replace("'", " ").split()
    return [part for word in words for part in word.split()]


def _variables(lines: str) -> dict[str, str]:
    """Simple variables that a script sets, by name; each may use those before it."""
    pattern = r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]+)\s*;?\s*$"
    variables: dict[str, str] = {}
    for name, value in re.findall(pattern, lines, re.MULTILINE):
        variables[name] = _put_in(value.strip("\"'"), variables)
    return variables


def _without_brackets(values: list[str]) -> list[str]:
    """A closing bracket of an array of arguments is not a value."""
    while values and values[-1] == ")" and values.count(")") > values.count("("):
        values = values[:-1]
    return values


def _put_in(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2][2:] if found[2] else found[0])

    return re.sub(r"\$(?:\{(\w+)(:-[^}]*)?\}|(\w+))", value, text)
