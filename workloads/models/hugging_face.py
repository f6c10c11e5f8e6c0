"""Hugging Face config.json -> the keys of a model.

Reads the families of `_FAMILIES`; one whose blocks differ is refused rather than approximated. Of the blocks that are
read, some things are simpler here: dropout is left out, gelu_new is one kernel, layers without rotation (SmolLM3) are
not told apart from others, and a llama's sliding window is not read.
Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.workloads.models import (
    hugging_face_compressed,
    hugging_face_hybrids,
    hugging_face_recent,
)

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}


def translate(config: Any, where: str) -> dict[str, Any]:
    """Keys of a model (as in models/*.toml) from a parsed config.json.

    Raises
    ------
    InputError
        For a family that is not known here, and for every key that is missing, no whole number, or not understood.
    """
    if not isinstance(config, dict):
        raise InputError.of(where, "", type(config).__name__, "an object")
    family = config.get("model_type")
    if isinstance(family, str) and family not in _FAMILIES:
        family = hugging_face_recent.text_family(family, config)
    if not isinstance(family, str) or family not in _FAMILIES:
        raise InputError(_not_read(family, config, where))
    names, extra = _FAMILIES[family]
    config = _text_of(config)
    mistakes = [
        mistake
        for key in names.values()
        for mistake in _not_whole(config.get(_spelt(config, key)), where, key)
    ]
    with InputError.collected(mistakes):
        rest = extra(config, where)
    InputError.check(mistakes)
    table = {"kind": "transformer"} | {
        ours: config[_spelt(config, theirs)] for ours, theirs in names.items()
    }
    return table | {ours: value for ours, value in rest.items() if value is not None}


def _not_read(family: object, config: dict[str, Any], where: str) -> Mistake:
    """Why a family is not read; of one that nobody has looked at, how to say that its layers are known ones."""
    known = hugging_face_recent.refused(str(family), config, where)
    if known is not None:
        return known
    found = "nothing" if family is None else str(family)
    mistake = unknown(where, "model_type", found, _FAMILIES)
    if not all(key in config for key in _LLAMA_NAMES.values()):
        return mistake
    alike = "mixtral" if "num_local_experts" in config else "llama"
    hint = f'its sizes are named as a llama\'s: if its layers are, too, "model_type": "{alike}" in a copy reads them'
    return replace(mistake, hint=f"{mistake.hint}; {hint}" if mistake.hint else hint)


def left_out(file: Path) -> tuple[str, ...]:
    """Parts of a config.json that are not simulated: towers for pictures or sound beside the text model."""
    try:
        config = files.json_of(files.read_text(file, "a config.json"))
    except (InputError, ValueError):
        return ()  # told of where the model is read
    if not isinstance(config, dict) or not isinstance(config.get("text_config"), dict):
        return ()
    return tuple(
        key
        for key, value in config.items()
        if key.endswith("_config") and key not in NO_TOWERS and isinstance(value, dict)
    )


#: Keys of a config.json that are about the text model, or about none.
NO_TOWERS = ("text_config", "quantization_config", "generation_config")


def _text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The text model of one that sees pictures as well: those are left out."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    tied = "tie_word_embeddings"
    return {tied: config[tied], **inner} if tied in config else inner


# Other spellings of the same key: BLOOM's checkpoints have both.
_SPELLINGS = {
    "hidden_size": ("n_embed",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
}


def _spelt(config: dict[str, Any], key: str) -> str:
    """The key as the file spells it."""
    return next(
        (name for name in (key, *_SPELLINGS.get(key, ())) if name in config), key
    )


def _not_whole(value: object, where: str, key: str) -> list[Mistake]:
    if type(value) is int and value > 0:
        return []
    return [
        Mistake(
            where,
            key,
            "nothing" if value is None else repr(value),
            "a whole number above 0",
        )
    ]


def _activation(name: object, where: str, key: str) -> str:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise InputError(unknown(where, key, str(name), _ACTIVATIONS))
    return _ACTIVATIONS[name]


def _llama(config: dict[str, Any], where: str) -> dict[str, Any]:
    attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != mlp:
        found, expected = str(attention).lower(), f"{str(mlp).lower()}, as mlp_bias"
        raise InputError.of(
            where,
            "attention_bias",
            found,
            expected,
            "biases of some layers only are not modelled",
        )
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": _activation(
            config.get("hidden_act", "silu"), where, "hidden_act"
        ),
        "bias": attention,
        "gated": True,
        "norm": "rms",
    }


def _mistral(config: dict[str, Any], where: str) -> dict[str, Any]:
    return _llama({"num_key_value_heads": 8} | config, where)  # MistralConfig's default


def _gemma(config: dict[str, Any], where: str) -> dict[str, Any]:
    usual = {"head_dim": 256, "tie_word_embeddings": True}
    said = config.get("hidden_activation") or "gelu_pytorch_tanh"
    return _llama(usual | config | {"hidden_act": said}, where)


def _seed(config: dict[str, Any], where: str) -> dict[str, Any]:
    made = _llama({**config, "attention_bias": False, "mlp_bias": False}, where)
    return made | {"qkv_bias": bool(config.get("attention_bias", True))}


def _glm4_moe(config: dict[str, Any], where: str) -> dict[str, Any]:
    made = _seed(config, where)
    return made | {
        "qk_norm": bool(config.get("use_qk_norm")) or None,
        "moe_ffn": config.get("moe_intermediate_size"),
        "experts": config.get("n_routed_experts", 128),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "shared_experts": config.get("n_shared_experts", 1) or None,
        "dense_layers": config.get("first_k_dense_replace", 1),
        "router_bias": True,
    }


def _mixtral(config: dict[str, Any], where: str) -> dict[str, Any]:
    # Defaults of MixtralConfig, which save_pretrained may leave out.
    routed = {
        "experts": config.get("num_local_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
    }
    return _mistral(config, where) | routed


def _gpt2(config: dict[str, Any], where: str) -> dict[str, Any]:
    inner, width = config.get("n_inner"), config.get("n_embd")
    return {
        "ffn": 4 * width if inner is None and isinstance(width, int) else inner,
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "activation": _activation(
            config.get("activation_function", "gelu_new"), where, "activation_function"
        ),
        "gated": False,
        "norm": "layer",
        "bias": True,
        "positions": "learned",
    }


def _qwen2(config: dict[str, Any], where: str) -> dict[str, Any]:
    return _llama({"num_key_value_heads": 32} | config, where) | {"qkv_bias": True}


def _qwen3(config: dict[str, Any], where: str) -> dict[str, Any]:
    return _llama({"num_key_value_heads": 32, "head_dim": 128} | config, where) | {
        "qk_norm": True
    }


def _qwen3_moe(config: dict[str, Any], where: str) -> dict[str, Any]:
    plain = list(config.get("mlp_only_layers") or [])
    if plain != list(range(len(plain))):
        expected = "the first layers only"
        raise InputError.of(
            where, "mlp_only_layers", str(plain), expected, "others are not modelled"
        )
    made = _qwen3({"num_key_value_heads": 4} | config, where)
    return made | {
        "moe_ffn": config.get("moe_intermediate_size", 768),
        "experts": config.get("num_experts", 128),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "moe_every": config.get("decoder_sparse_step", 1),
        "dense_layers": len(plain) or None,
    }


def _deepseek(config: dict[str, Any], where: str) -> dict[str, Any]:
    made = _llama(
        config
        | {
            "num_key_value_heads": None,
            "head_dim": config.get("qk_nope_head_dim", 128),
        },
        where,
    )
    made |= {
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": config.get("kv_lora_rank", 512),
        "rope_head_dim": config.get("qk_rope_head_dim", 64),
        "v_head_dim": config.get("v_head_dim", 128),
    }
    if not config.get("n_routed_experts"):
        return made
    return made | {
        "moe_ffn": config.get("moe_intermediate_size"),
        "experts": config.get("n_routed_experts"),
        "experts_per_token": config.get("num_experts_per_tok"),
        "shared_experts": config.get("n_shared_experts"),
        "dense_layers": config.get("first_k_dense_replace", 0),
        "moe_every": config.get("moe_layer_freq", 1),
        # With "noaux_tc" a bias corrects the scores that experts are chosen by.
        "router_bias": config.get("topk_method") == "noaux_tc"
        or config.get("model_type") in ("deepseek_v3", "kimi_k2"),
    }


def _gpt_oss(config: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        "kv_heads": config.get("num_key_value_heads", 8),
        "head_dim": config.get("head_dim", 64),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": _activation(
            config.get("hidden_act", "silu"), where, "hidden_act"
        ),
        "bias": True,
        "gated": True,
        "norm": "rms",
        "experts": config.get("num_local_experts", 128),
        "experts_per_token": config.get(
            "num_experts_per_tok", config.get("experts_per_token", 4)
        ),
        "router_bias": True,
        "sinks": True,
        "clamped": True,  # swiglu_limit, 7 where the file says none
        "window": config.get("sliding_window", 128),
        "window_every": 2,
    }


def _bloom(config: dict[str, Any], where: str) -> dict[str, Any]:
    width = config.get("hidden_size", config.get("n_embed"))
    return {
        "ffn": 4 * width if isinstance(width, int) else None,
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "activation": "gelu",
        "gated": False,
        "norm": "layer",
        "bias": True,
        "positions": "alibi",
        "embedding_norm": True,
    }


def _mpt(config: dict[str, Any], where: str) -> dict[str, Any]:
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    attention = config.get("attn_config") or {}
    alibi, bias = bool(attention.get("alibi", False)), not config.get("no_bias", True)
    return {
        "ffn": int(ratio * width) if isinstance(width, int) else None,
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "activation": "gelu",
        "gated": False,
        "norm": "layer",
        "norm_bias": bias,
        "bias": bias,
        "positions": "alibi" if alibi else "learned",
        "max_positions": None if alibi else config.get("max_seq_len", 2048),
    }


def _nemotron(config: dict[str, Any], where: str) -> dict[str, Any]:
    made = _llama(config | {"hidden_act": "relu"}, where)
    activation = config.get("hidden_act", "relu2")
    if activation != "relu2":
        raise InputError.of(where, "hidden_act", repr(activation), '"relu2"')
    return made | {"gated": False, "activation": "relu2", "norm": "layer"}


_LLAMA_NAMES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
_GPT2_NAMES = {
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "vocab": "vocab_size",
    "max_positions": "n_positions",
}
_BLOOM_NAMES = {
    "hidden": "hidden_size",
    "layers": "n_layer",
    "heads": "n_head",
    "vocab": "vocab_size",
}
_MPT_NAMES = {
    "hidden": "d_model",
    "layers": "n_layers",
    "heads": "n_heads",
    "vocab": "vocab_size",
}
_FAMILIES: dict[
    str, tuple[dict[str, str], Callable[[dict[str, Any], str], dict[str, Any]]]
] = {
    "llama": (_LLAMA_NAMES, _llama),
    "mistral": (_LLAMA_NAMES, _mistral),
    "mixtral": (_LLAMA_NAMES, _mixtral),
    "smollm3": (_LLAMA_NAMES, _llama),
    "phi3": (_LLAMA_NAMES, _llama),
    "gemma": (_LLAMA_NAMES, _gemma),
    "seed_oss": (_LLAMA_NAMES, _seed),
    "glm4_moe": (_LLAMA_NAMES, _glm4_moe),
    "gpt2": (_GPT2_NAMES, _gpt2),
    "qwen2": (_LLAMA_NAMES, _qwen2),
    "qwen3": (_LLAMA_NAMES, _qwen3),
    "qwen3_moe": (_LLAMA_NAMES, _qwen3_moe),
    "deepseek_v2": (_LLAMA_NAMES, _deepseek),
    "deepseek_v3": (_LLAMA_NAMES, _deepseek),
    "kimi_k2": (_LLAMA_NAMES, _deepseek),
    "gpt_oss": (_LLAMA_NAMES, _gpt_oss),
    "bloom": (_BLOOM_NAMES, _bloom),
    "mpt": (_MPT_NAMES, _mpt),
    "nemotron": (_LLAMA_NAMES, _nemotron),
    "granitemoehybrid": (hugging_face_hybrids.NAMES, hugging_face_recent.granite),
    **{
        family: (_LLAMA_NAMES, reader)
        for family, reader in hugging_face_recent.readers(_llama, _deepseek).items()
    },
    **hugging_face_hybrids.FAMILIES,
    **hugging_face_compressed.FAMILIES,
}
