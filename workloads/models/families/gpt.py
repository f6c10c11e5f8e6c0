"""Layer norms and plain feed-forward parts: GPT-2, BLOOM, MPT; Falcon and GPT-NeoX, whose parts are beside each other.

gelu_new is one kernel here. Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family, activation


def _plain(config: Config, width: Any, tied: bool = True) -> Config:
    """What all have: ``width``, four times of which is the feed-forward part's unless the file says more."""
    return {
        "ffn": 4 * width if isinstance(width, int) else None,
        "tied_embeddings": config.get("tie_word_embeddings", tied),
        "activation": "gelu",
        "gated": False,
        "norm": "layer",
        "bias": True,
    }


def _gpt2(config: Config, where: str) -> Config:
    key, inner = "activation_function", config.get("n_inner")
    made = _plain(config, config.get("n_embd")) | {"positions": "learned"}
    made["activation"] = activation(config.get(key, "gelu_new"), where, key)
    return made if inner is None else made | {"ffn": inner}


def _bloom(config: Config, where: str) -> Config:
    width = config.get("hidden_size", config.get("n_embed"))
    return _plain(config, width) | {"positions": "alibi", "embedding_norm": True}


def _mpt(config: Config, where: str) -> Config:
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    attention = config.get("attn_config") or {}
    alibi, bias = bool(attention.get("alibi", False)), not config.get("no_bias", True)
    return _plain(config, width) | {
        "ffn": int(ratio * width) if isinstance(width, int) else None,
        "norm_bias": bias,
        "bias": bias,
        "positions": "alibi" if alibi else "learned",
        "max_positions": None if alibi else config.get("max_seq_len", 2048),
    }


def _falcon(config: Config, where: str) -> Config:
    """7B has one norm for both parts and one head of keys, 40B a norm for each and groups, RW-1B no parallel parts."""
    new = bool(config.get("new_decoder_architecture"))
    beside = new or config["parallel_attn"]
    norms = config.get("num_ln_in_parallel_attn") or (2 if new else 1)
    groups = config.get("num_kv_heads") if new else None
    single = config["multi_query"] and not new
    made = _plain(config, config.get("hidden_size"))
    made["activation"] = activation(config["activation"], where, "activation")
    made |= {"ffn": config.get("ffn_hidden_size") or made["ffn"]}
    return made | {
        "kv_heads": 1 if single else groups,
        "bias": bool(config.get("bias")),
        "positions": "alibi" if config.get("alibi") else "rope",
        "parallel_parts": beside or None,
        "norms": "shared" if beside and norms == 1 else None,
    }


def _gpt_neox(config: Config, where: str) -> Config:
    if not config["attention_bias"]:
        expected = "true: biases of some layers only are not modelled"
        raise InputError.of(where, "attention_bias", "false", expected)
    made = _plain(config, None, tied=False)
    del made["ffn"]
    made["activation"] = activation(config["hidden_act"], where, "hidden_act")
    return made | {"parallel_parts": config["use_parallel_residual"] or None}


_FALCON = {"multi_query": True, "parallel_attn": True, "activation": "gelu"}
_NEOX = {"use_parallel_residual": True, "attention_bias": True, "hidden_act": "gelu"}
_WIDTH = {"hidden": "hidden_size", "vocab": "vocab_size"}
FAMILIES = {
    "gpt2": Family(
        {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head"}
        | {"vocab": "vocab_size", "max_positions": "n_positions"},
        _gpt2,
    ),
    "bloom": Family(_WIDTH | {"layers": "n_layer", "heads": "n_head"}, _bloom),
    "mpt": Family(
        {"hidden": "d_model", "layers": "n_layers", "heads": "n_heads"}
        | {"vocab": "vocab_size"},
        _mpt,
    ),
    "falcon": Family(
        {ours: theirs for ours, theirs in LLAMA.items() if ours != "ffn"},
        _falcon,
        _FALCON,
    ),
    "gpt_neox": Family(LLAMA, _gpt_neox, _NEOX),
}
REFUSED = {
    "phi": "a head with a bias",
    "gptj": "a head with a bias",
}
