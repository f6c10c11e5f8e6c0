"""Checks of a model: numbers that do not fit each other, and keys that nothing would read."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from prestep.sim.errors import Mistake
from prestep.workloads.job.model import Model
from prestep.workloads.operation import words

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec


def numbers(said: Model, spec: ModelSpec, where: str) -> list[Mistake]:
    """Numbers that do not fit each other."""
    mistakes = []

    def wrong(key: str, value: object, expected: str, hint: str = "") -> None:
        mistakes.append(Mistake(where, f"model.{key}", str(value), expected, hint))

    if said.head_dim is None and spec.hidden % spec.heads:
        expected = f"a multiple of heads = {spec.heads}"
        wrong("hidden", spec.hidden, expected, "or give head_dim")
    if spec.heads % spec.kv_heads:
        wrong("kv_heads", spec.kv_heads, f"a divisor of heads = {spec.heads}")
    if spec.experts_per_token > spec.experts:
        expected = f"at most experts = {spec.experts}"
        wrong("experts_per_token", spec.experts_per_token, expected)
    if said.experts_per_token is not None and not spec.experts:
        wrong("experts_per_token", said.experts_per_token, "experts beside it")
    if spec.rotary and not spec.latent and spec.head_dim % 2:
        wrong("head_dim", spec.head_dim, "an even number: positions turn pairs")
    if (spec.positions == "learned") != (spec.max_positions > 0):
        expected = 'positions = "learned" and max_positions together'
        wrong("max_positions", said.max_positions or "nothing", expected)
    return mistakes


# Keys that count only where another key is given.
_NEEDS = {
    "experts": words(
        "moe_ffn shared_experts dense_layers moe_every router_bias router_narrow norm_topk moe_latent hash_layers"
    ),
    "kv_lora_rank": ("v_head_dim",),
    "window": ("window_every",),
}


def parts(said: Model, spec: ModelSpec, where: str) -> list[Mistake]:
    """Keys of experts without experts, of latent attention without its rank, of a pattern that leaves nothing."""
    mistakes = [
        Mistake(where, f"model.{key}", str(getattr(said, key)), f"{base} beside it")
        for base, keys in _NEEDS.items()
        for key in keys
        if getattr(said, key) and not getattr(spec, base)
    ]
    mistakes += [
        Mistake(where, f"model.{key}", str(getattr(said, key)), expected)
        for key in ("q_lora_rank", "rope_head_dim")
        for expected in ("kv_lora_rank or compress_ratios beside it",)
        if getattr(said, key) and not (spec.latent or spec.compressed)
    ]
    if spec.experts and not any(map(spec.has_experts, range(spec.layers))):
        found = f"dense_layers = {spec.dense_layers}, moe_every = {spec.moe_every}"
        expected = f"a layer with experts among {spec.layers}"
        mistakes.append(Mistake(where, "model.dense_layers", found, expected))
    odd = spec.norms == "shared" and not spec.parallel_parts
    if odd or (spec.norms != "before" and spec.streams > 1):
        expected = '"shared" with parallel_parts' if odd else '"before" with streams'
        mistakes.append(Mistake(where, "model.norms", f'"{spec.norms}"', expected))
    for key in ("experts", "layer_pattern", "compress_ratios", "index_topk"):
        if spec.parallel_parts and getattr(spec, key):
            expected = "nothing beside parallel_parts: those are attention and a dense feed-forward part"
            mistakes.append(Mistake(where, f"model.{key}", "a value", expected))
    if spec.latent and (spec.qkv_bias or spec.out_bias):
        expected = "false: projections of latent attention have no biases here"
        mistakes.append(Mistake(where, "model.qkv_bias", "true", expected))
    if spec.latent and spec.kv_heads != spec.heads:
        expected = f"{spec.heads}, as heads: latent attention has a key for each"
        mistakes.append(Mistake(where, "model.kv_heads", str(spec.kv_heads), expected))
    return mistakes


# Keys that a model of a kind has.
_REFERENCE = {"kind", "name", "file", "family"}


_OWN = {
    "transformer": {entry.name for entry in fields(Model)}
    - {"sizes", "image_size", "classes", "patch"},
    "vit": set(words("hidden layers heads ffn patch image_size classes")),
    "mlp": {"sizes", "activation", "bias"},
    "resnet": {"layers", "image_size", "classes"},
    "program": set(),
}


def foreign(said: Model, spec: ModelSpec, where: str) -> list[Mistake]:
    """Keys that a model of this kind would ignore."""
    given = [e.name for e in fields(Model) if getattr(said, e.name) is not None]
    return [
        Mistake(where, f"model.{key}", "a key", f"no such key for a {kind}")
        for kind in (said.kind or spec.kind,)
        for key in given
        if key not in _OWN[kind] | _REFERENCE
    ]
