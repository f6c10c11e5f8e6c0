"""Hugging Face config.json of DeepSeek-V4 -> the keys of a model.

compress_ratios say layers' attention, or layer_types and compress_rates; a ratio for each layer of multi-token
prediction may follow.
Source: deepseek-ai/DeepSeek-V4-Flash, config.json; Megatron-Bridge, models/deepseek/deepseek_v4_bridge.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.models.compressed import HEAVY, INDEXED, RATIOS, WINDOW
from prestep.workloads.models.families import Config

#: Keys that are understood with one value alone.
_ONLY = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_KINDS = {
    "sliding_attention": WINDOW,
    "compressed_sparse_attention": INDEXED,
    "heavily_compressed_attention": HEAVY,
}


def deepseek_v4(config: Config, where: str) -> Config:
    """Ratios of layers, those whose experts a table chooses, and those of multi-token prediction."""
    InputError.check(_others(config, where))
    further = config.get("num_nextn_predict_layers") or 0
    return {
        "compress_ratios": _ratios(config, where, further),
        "hash_layers": _hashed(config, where) or None,
        "mtp_layers": further or None,
    }


def _others(config: Config, where: str) -> list[Mistake]:
    return [
        Mistake(where, key, repr(config[key]), repr(only))
        for key, only in _ONLY.items()
        if config.get(key, only) != only
    ]


def _ratios(config: Config, where: str, further: int) -> list[int]:
    """Of the layers, and of those of multi-token prediction where the file has them."""
    said = config.get("compress_ratios")
    if said is None:
        said = _by_kind(config, where)
    if not isinstance(said, list) or set(map(str, said)) - set(map(str, RATIOS)):
        expected = f"a list of {', '.join(map(str, RATIOS))}"
        raise InputError.of(where, "compress_ratios", repr(said)[:60], expected)
    # A ratio for each stage of speculative decoding may follow, which are not trained as further predictions.
    layers = int(config["num_hidden_layers"])
    return said[: layers + further] if len(said) >= layers + further else said


def _by_kind(config: Config, where: str) -> list[int]:
    """Ratios of layers that are named by their kind."""
    kinds, rates = config.get("layer_types"), config.get("compress_rates") or {}
    if not isinstance(kinds, list):
        raise InputError.of(where, "compress_ratios", "nothing", "a list")
    if strange := sorted(set(map(str, kinds)) - set(_KINDS)):
        expected = " or ".join(_KINDS)
        raise InputError.of(where, "layer_types", strange[0], expected)
    return [rates.get(kind, _KINDS[kind]) for kind in kinds]


def _hashed(config: Config, where: str) -> int:
    """First layers whose experts the token's number chooses."""
    said = config.get("num_hash_layers")
    if isinstance(said, int):
        return said
    kinds = list(config.get("mlp_layer_types") or ())
    count = next((at for at, kind in enumerate(kinds) if kind != "hash_moe"), 0)
    if "hash_moe" in kinds[count:]:
        expected = "hash_moe in the first layers only"
        raise InputError.of(where, "mlp_layer_types", "hash_moe later", expected)
    return count
