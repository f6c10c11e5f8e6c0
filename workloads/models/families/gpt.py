"""Layer norms and plain feed-forward parts: GPT-2, OPT, BLOOM, MPT, StarCoder; Falcon, GPT-NeoX and GPT-J, whose parts
are beside each other.

gelu_new is one kernel here. Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.models.families import Config, activation


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


def gpt2(config: Config, where: str) -> Config:
    """Learned positions."""
    made, inner = (
        _plain(config, where, config.get("n_embd"), act=_ACT),
        config.get("n_inner"),
    )
    return made | {"positions": "learned"} | ({"ffn": inner} if inner else {})


def bloom(config: Config, where: str) -> Config:
    """Biases by distance, and a norm behind the embedding."""
    made = _plain(config, where, config.get("hidden_size"))
    return made | {"positions": "alibi", "embedding_norm": True}


def mpt(config: Config, where: str) -> Config:
    """A width in multiples, and biases where the file does not take them away."""
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


def falcon(config: Config, where: str) -> Config:
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


def gpt_neox(config: Config, where: str) -> Config:
    """Parts beside each other."""
    biased = bool(config["attention_bias"])
    made = _plain(config, where, None, act="hidden_act", tied=False)
    beside = {"parallel_parts": config["use_parallel_residual"] or None}
    return made | beside | {"qkv_bias": biased, "out_bias": biased}


def single(config: Config, where: str) -> Config:
    """StarCoder's one head of keys."""
    return {"kv_heads": 1 if config["multi_query"] else None}


def activated(config: Config, where: str) -> Config:
    """Phi's activation, whose name files may leave out."""
    return {"activation": activation(config["hidden_act"], where, "hidden_act")}


def starcoder2(config: Config, where: str) -> Config:
    """The activation under another key than GPT-2's."""
    return _plain(config, where, None, act="hidden_act")


def opt(config: Config, where: str) -> Config:
    """Learned positions, with two more rows."""
    if config.get("word_embed_proj_dim") not in (None, config.get("hidden_size")):
        expected = "as hidden_size: projections of words are not modelled"
        found = str(config["word_embed_proj_dim"])
        raise InputError.of(where, "word_embed_proj_dim", found, expected)
    made, rows = _plain(config, where, None, act=_ACT), "max_position_embeddings"
    # Two rows more, of which padding has one (OPTLearnedPositionalEmbedding).
    return made | {"positions": "learned", "max_positions": config[rows] + 2}


_ACT = "activation_function"
