"""Models of published measurements by name: what kind they are, and the dimensions that are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab.formats.published_setups import GENERIC, SETUPS, tables
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model

SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
LIKE_LLAMA = {"gated": True, "activation": "silu", "norm": "rms", "positions": "rope"}
LIKE_GPT = {"gated": False, "activation": "gelu", "norm": "layer", "positions": "rope"}
LOOKS_LIKE_EXPERTS = r"moe|expert|x\d+b|-a\d+b|_a\d+b"
EXPERTS = r"(\d+) experts,? top[- ]?(\d+)(?:,? moe_ffn (\d+))?"  # as the notes of a row have it


@dataclass(frozen=True)
class Family:
    """A kind of model by its name: the keys of a scenario's [model] that no column has."""

    name: str
    keys: Mapping[str, Any]


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Families of models, the first that fits a name counts."""
    return (*_named(SETUPS, "family"), *_named(GENERIC, "family"))


@lru_cache(maxsize=1)
def shapes() -> tuple[Family, ...]:
    """Dimensions of models known by name, the first that fits counts: cells, or `like` for one of workloads/models."""
    return _named(GENERIC, "shape")


def shape_of(model: str) -> dict[str, int]:
    """The cells layers, hidden, heads, kv_heads, ffn and vocab of a model known by its name; {} for others."""
    keys = next(
        (one.keys for one in shapes() if re.search(one.name, model, re.IGNORECASE)), {}
    )
    if like := keys.get("like"):
        spec = load_model(Model(name=like))
        return {name: int(getattr(spec, name)) for name in SHAPE if getattr(spec, name)}
    return {name: int(value) for name, value in keys.items()}


def _named(path: Path, key: str) -> tuple[Family, ...]:
    return tuple(
        Family(table.pop("name"), table) for table in map(dict, tables(path, key))
    )


def family_of(row: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
    """Keys of [model] by the model's name, and what was assumed of a name that no family has.

    Such a model is a decoder: with three matrices like Llama's, or two like GPT's where its inner width is four times
    the outer one. Experts of it must be said in the notes ("MoE 128 experts top8 moe_ffn 1536").

    Raises
    ------
    InputError
        If it has experts and nobody says how many.
    """
    model, notes = row.get("model", ""), row.get("notes", "")
    for family in families():
        if re.search(family.name, model, re.IGNORECASE):
            return family.keys, ""
    assumed = f"family of {model or 'no name'} assumed"
    if experts := re.search(EXPERTS, notes, re.IGNORECASE):
        return LIKE_LLAMA | _experts(experts), f"{assumed}: Llama"
    if re.search(LOOKS_LIKE_EXPERTS, f"{model} {notes}", re.IGNORECASE):
        expected = "its experts, in the notes or a [[family]]"
        raise InputError(Mistake(row.get("id", ""), "model", f'"{model}"', expected))
    if _has_two_matrices(row):
        return dict(LIKE_GPT), f"{assumed}: GPT"
    return dict(LIKE_LLAMA), f"{assumed}: Llama"


def _experts(notes: re.Match[str]) -> dict[str, Any]:
    """Keys of [model] for the experts that a row's notes give."""
    count, per_token, width = notes.groups()
    keys = {"experts": int(count), "experts_per_token": int(per_token)}
    return keys | {"moe_ffn": int(width)} if width else keys


def _has_two_matrices(row: Mapping[str, str]) -> bool:
    """Whether the inner width is four times the outer one, or not given."""
    hidden, inner = row.get("hidden", ""), row.get("ffn", "").strip()
    return hidden.isdecimal() and inner in ("", str(4 * int(hidden)))
