"""Command R, Command A and Aya: one layer norm without a bias for both parts, which are beside each other.

The scale of logits, one kernel, is left out. Source: transformers, models/cohere*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family, window
from prestep.workloads.models.families.llama import llama


def _cohere(config: Config, where: str) -> Config:
    if config.get("use_qk_norm"):
        expected = "false: layer norms of queries and keys are not modelled"
        raise InputError.of(where, "use_qk_norm", "true", expected)
    norms = {"norm": "layer", "norm_bias": False, "norms": "shared"}
    made = llama(config, where) | norms | {"parallel_parts": True}
    return made | window(config, where)


_TIED = {"tie_word_embeddings": True}
FAMILIES = {
    "cohere": Family(LLAMA, _cohere, _TIED),
    "cohere2": Family(LLAMA, _cohere, _TIED | {"sliding_window_pattern": 4}),
}
