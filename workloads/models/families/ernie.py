"""ERNIE 4.5, dense and of experts, whose words are tied.

Source: transformers, models/ernie4_5*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import Config
from prestep.workloads.models.families.llama import llama


def ernie(config: Config, where: str) -> Config:
    biased = config.get("use_bias")
    made = llama(config | {"attention_bias": biased, "mlp_bias": biased}, where)
    return made | {"head_bias": bool(biased)}


def check_layers(config: Config, where: str) -> Config:
    """No dense layers behind those of experts."""
    last = config["moe_layer_end_index"]
    if last not in (-1, config.get("num_hidden_layers", 0) - 1):
        expected, hint = "-1", "dense layers behind those of experts are not modelled"
        raise InputError.of(where, "moe_layer_end_index", str(last), expected, hint)
    return {}
