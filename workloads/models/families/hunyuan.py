"""Hunyuan: norms of queries and keys; of experts one more that every token sees, as wide as the others.

Source: transformers, models/hunyuan_v1_*/modeling_*.py, models/hy_v3/configuration_hy_v3.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import LLAMA, Config, Family, made_of
from prestep.workloads.models.families.llama import llama, routed


def _dense(config: Config, where: str) -> Config:
    return llama(config, where) | {"qk_norm": bool(config["use_qk_norm"]) or None}


def _moe(config: Config, where: str) -> Config:
    chosen = config["moe_topk"]
    return _dense(config, where) | {
        "experts": config["num_experts"],
        "experts_per_token": chosen[0] if isinstance(chosen, list) else chosen,
        "shared_experts": 1,
    }


_NORMED = {"use_qk_norm": True}
_THIRD = _NORMED | {
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1536,
    "head_dim": 128,
}
_EXPERTS = routed("num_experts", "num_shared_experts", 1)
FAMILIES = {
    "hunyuan_v1_dense": Family(LLAMA, _dense, _NORMED),
    "hunyuan_v1_moe": Family(LLAMA, _moe, _NORMED | {"num_experts": 1, "moe_topk": 1}),
    "hy_v3": Family(LLAMA, made_of(_dense, _EXPERTS, router_bias=True), _THIRD),
}
