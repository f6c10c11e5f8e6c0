"""Gemma 1 and 3: norms that scale by one plus their weight, in Gemma 3 behind each part as well as before it.

The embedding's scale, one kernel, is left out. Source: transformers, models/gemma*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family, window
from prestep.workloads.models.families.llama import llama


def _gemma(config: Config, where: str) -> Config:
    said = config.get("hidden_activation") or "gelu_pytorch_tanh"
    made = llama(config | {"hidden_act": said}, where)
    return made | {"norm": "rms-centred"}


def _gemma3(config: Config, where: str) -> Config:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key):
            raise InputError.of(where, key, str(config[key]), "null: no capped scores")
    made = _gemma(config, where) | window(config, where)
    return made | {"norms": "around", "qk_norm": True}


_USUAL = {"head_dim": 256, "tie_word_embeddings": True}
#: What files of Gemma 3 leave out (Gemma3TextConfig).
_THIRD = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
FAMILIES = {
    "gemma": Family(LLAMA, _gemma, _USUAL),
    "gemma3_text": Family(LLAMA, _gemma3, _USUAL | _THIRD),
}
REFUSED = {
    "gemma2": "capped scores",
    "gemma3n_text": "inputs of every layer from tables of their own, and layers that share keys and values",
    "gemma4_text": "layers with heads of another width, and others that share keys and values",
}
