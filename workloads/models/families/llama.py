"""Llama, and those whose layers are its blocks: Mistral, Qwen, OLMo, Apertus, gpt-oss and others.

Of these some things are simpler here: dropout is left out. xIELU is one kernel, as its extension for CUDA.
Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import Config, activation, as_wide, routed


def llama(config: Config, where: str) -> Config:
    """Attention with grouped keys and a gated feed-forward part, each behind a norm."""
    biased = bool(config.get("attention_bias"))
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": activation(config.get("hidden_act", "silu"), where, "hidden_act"),
        "bias": bool(config.get("mlp_bias")),
        "qkv_bias": biased,
        "out_bias": biased,
        "gated": True,
        "norm": "rms",
    }


def qwen2_moe(config: Config, where: str) -> Config:
    """Experts as Qwen 3's, and a shared one behind a gate."""
    key, width = "shared_expert_intermediate_size", config["moe_intermediate_size"]
    shared = as_wide(config, key, width, where)
    gate = {"shared_gate": True} if shared else {}
    biased = bool(config.get("qkv_bias", True))
    made = qwen3_moe(config, where) | {"shared_experts": shared}
    return made | gate | {"qkv_bias": biased}


def qwen3_moe(config: Config, where: str) -> Config:
    """Experts in every n-th layer, but for the first ones."""
    plain = list(config.get("mlp_only_layers") or [])
    if plain != list(range(len(plain))):
        expected, hint = "the first layers only", "others are not modelled"
        raise InputError.of(where, "mlp_only_layers", str(plain), expected, hint)
    return routed("num_experts")(config, where) | {
        "moe_every": config.get("decoder_sparse_step", 1),
        "dense_layers": len(plain) or None,
    }


def topk(config: Config, where: str) -> Config:
    """Hunyuan's experts of a token, which may be listed by layer."""
    chosen = config["moe_topk"]
    return {"experts_per_token": chosen[0] if isinstance(chosen, list) else chosen}


def minimax(config: Config, where: str) -> Config:
    """Norms of queries and keys over all heads."""
    return dict.fromkeys(
        ("qk_norm", "qk_norm_wide"), bool(config.get("use_qk_norm", True))
    )


def gpt_oss(config: Config, where: str) -> Config:
    """A llama with all biases."""
    chosen = config.get("num_experts_per_tok", config.get("experts_per_token", 4))
    made = llama(config | {"attention_bias": True, "mlp_bias": True}, where)
    return made | {"experts_per_token": chosen}


def nemotron(config: Config, where: str) -> Config:
    """Layer norms, and squared ReLU without a gate."""
    made = llama(config | {"hidden_act": "relu"}, where)
    said = config.get("hidden_act", "relu2")
    if said != "relu2":
        raise InputError.of(where, "hidden_act", repr(said), '"relu2"')
    return made | {"gated": False, "activation": "relu2", "norm": "layer"}


def apertus(config: Config, where: str) -> Config:
    """xIELU without a gate, and norms of queries and keys."""
    if config.get("hidden_act", "xielu") != "xielu":
        found = repr(config["hidden_act"])
        raise InputError.of(where, "hidden_act", found, '"xielu"')
    made = llama(config | {"hidden_act": "gelu"}, where)
    return made | {"gated": False, "activation": "xielu", "qk_norm": True}


def gemma(config: Config, where: str) -> Config:
    """Norms that scale by one plus their weight."""
    said = config.get("hidden_activation") or "gelu_pytorch_tanh"
    made = llama(config | {"hidden_act": said}, where)
    return made | {"norm": "rms-centred"}


def ernie(config: Config, where: str) -> Config:
    """Biases of all layers, or none."""
    biased = config.get("use_bias")
    return llama(config | {"attention_bias": biased, "mlp_bias": biased}, where)


def to_the_end(config: Config, where: str) -> Config:
    """ERNIE's layers of experts, behind which no dense ones may follow."""
    last = config["moe_layer_end_index"]
    if last not in (-1, config.get("num_hidden_layers", 0) - 1):
        expected, hint = "-1", "dense layers behind those of experts are not modelled"
        raise InputError.of(where, "moe_layer_end_index", str(last), expected, hint)
    return {}
