"""Gemma 1 to 3: norms that scale by one plus their weight, in Gemma 2 and 3 behind each part as well as before it.

The embedding's scale, one kernel, is left out. Source: transformers, models/gemma*/configuration_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import LLAMA, Config, Family, made_of, window
from prestep.workloads.models.families.llama import llama


def _gemma(config: Config, where: str) -> Config:
    said = config.get("hidden_activation") or "gelu_pytorch_tanh"
    made = llama(config | {"hidden_act": said}, where)
    return made | {"norm": "rms-centred"}


def _caps(config: Config, where: str) -> Config:
    return (
        _gemma(config, where)
        | window(config, where)
        | {
            "capped_scores": bool(config.get("attn_logit_softcapping")) or None,
            "capped_logits": bool(config.get("final_logit_softcapping")) or None,
        }
    )


_VAULT = made_of(_gemma, window, _caps)
_GEMMA2 = made_of(_VAULT, norms="around")
_USUAL = {"head_dim": 256, "tie_word_embeddings": True}
#: What files of Gemma 3 leave out (Gemma3TextConfig).
_THIRD = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
#: And of Gemma 2, whose scores and logits are capped.
_SECOND = _USUAL | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
FAMILIES = {
    "gemma": Family(LLAMA, _gemma, _USUAL),
    "gemma2": Family(LLAMA, _GEMMA2, _SECOND | {"sliding_window_pattern": 2}),
    "vaultgemma": Family(LLAMA, _VAULT, _SECOND | {"sliding_window_pattern": 2}),
    "gemma3_text": Family(LLAMA, made_of(_GEMMA2, qk_norm=True), _USUAL | _THIRD),
}
REFUSED = {
    "gemma3n_text": "inputs of every layer from tables of their own, and layers that share keys and values",
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"),
        "layers with heads of another width, and others that share keys and values",
    ),
}
