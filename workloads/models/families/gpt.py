"""Layer norms and plain feed-forward parts: GPT-2, OPT, BLOOM, MPT, StarCoder; Falcon, GPT-NeoX and GPT-J, whose parts
are beside each other.

gelu_new is one kernel here. Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family, activation


def _plain(
    config: Config, where: str, width: Any, act: str = "", tied: bool = True
) -> Config:
    """What all have: ``width``, four times of which is the feed-forward part's unless the file says more.

    ``act``: the key of their activation.
    """
    return {
        "ffn": 4 * width if isinstance(width, int) else None,
        "tied_embeddings": config.get("tie_word_embeddings", tied),
        "activation": activation(config[act], where, act) if act else "gelu",
        "gated": False,
        "norm": "layer",
        "bias": True,
    }


def _gpt2(config: Config, where: str) -> Config:
    made, inner = (
        _plain(config, where, config.get("n_embd"), act=_ACT),
        config.get("n_inner"),
    )
    return made | {"positions": "learned"} | ({"ffn": inner} if inner else {})


def _bloom(config: Config, where: str) -> Config:
    made = _plain(config, where, config.get("hidden_size"))
    return made | {"positions": "alibi", "embedding_norm": True}


def _mpt(config: Config, where: str) -> Config:
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    attention = config.get("attn_config") or {}
    alibi, bias = bool(attention.get("alibi", False)), not config.get("no_bias", True)
    return _plain(config, where, width) | {
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
    made = _plain(config, where, config.get("hidden_size"), act="activation")
    made |= {"ffn": config.get("ffn_hidden_size") or made["ffn"]}
    return made | {
        "kv_heads": 1 if single else groups,
        "bias": bool(config.get("bias")),
        "positions": "alibi" if config.get("alibi") else "rope",
        "parallel_parts": beside or None,
        "norms": "shared" if beside and norms == 1 else None,
    }


def _gpt_neox(config: Config, where: str) -> Config:
    biased = bool(config["attention_bias"])
    made = _plain(config, where, None, act="hidden_act", tied=False)
    beside = {"parallel_parts": config["use_parallel_residual"] or None}
    return made | beside | {"qkv_bias": biased, "out_bias": biased}


def _gptj(config: Config, where: str) -> Config:
    """Feed-forward part and head have biases, attention has none; both parts are behind one norm."""
    beside = {"parallel_parts": True, "norms": "shared", "positions": "rope"}
    plain = {"qkv_bias": False, "out_bias": False, "head_bias": True}
    untied = {"tied_embeddings": config.get("tie_word_embeddings", False)}
    return _gpt2(config, where) | beside | plain | untied


def _bigcode(config: Config, where: str) -> Config:
    return _gpt2(config, where) | {"kv_heads": 1 if config["multi_query"] else None}


def _starcoder2(config: Config, where: str) -> Config:
    grouped = {"kv_heads": config.get("num_key_value_heads")}
    made = _plain(config, where, None, act="hidden_act") | grouped
    return made | {"bias": bool(config["use_bias"])}


def _opt(config: Config, where: str) -> Config:
    if config.get("word_embed_proj_dim") not in (None, config.get("hidden_size")):
        expected = "as hidden_size: projections of words are not modelled"
        found = str(config["word_embed_proj_dim"])
        raise InputError.of(where, "word_embed_proj_dim", found, expected)
    made, rows = _plain(config, where, None, act=_ACT), "max_position_embeddings"
    # Two rows more, of which padding has one (OPTLearnedPositionalEmbedding).
    return made | {"positions": "learned", "max_positions": config[rows] + 2}


_ACT = "activation_function"
_NEW = {_ACT: "gelu_new"}
_OPT = {_ACT: "relu", "max_position_embeddings": 2048}
_STARCODER = {"hidden_act": "gelu_pytorch_tanh", "use_bias": True}
_GPT = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head"}
_GPT2 = _GPT | {"vocab": "vocab_size", "max_positions": "n_positions"}
_FALCON = {"multi_query": True, "parallel_attn": True, "activation": "gelu"}
_NEOX = {"use_parallel_residual": True, "attention_bias": True, "hidden_act": "gelu"}
_WIDTH = {"hidden": "hidden_size", "vocab": "vocab_size"}
FAMILIES = {
    "gpt2": Family(_GPT2, _gpt2, _NEW),
    "gpt_bigcode": Family(_GPT2, _bigcode, _NEW | {"multi_query": True}),
    **dict.fromkeys(
        ("gptj", "codegen"), Family(_GPT | {"vocab": "vocab_size"}, _gptj, _NEW)
    ),
    "starcoder2": Family(LLAMA, _starcoder2, _STARCODER),
    "opt": Family(LLAMA | {"ffn": "ffn_dim"}, _opt, _OPT),
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
