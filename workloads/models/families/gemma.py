"""Gemma 1 to 3: norms that scale by one plus their weight, in Gemma 2 and 3 behind each part as well as before it.

Source: transformers, models/gemma*/configuration_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import Config
from prestep.workloads.models.families.llama import llama


def gemma(config: Config, where: str) -> Config:
    """A llama whose norms scale by one plus their weight."""
    said = config.get("hidden_activation") or "gelu_pytorch_tanh"
    made = llama(config | {"hidden_act": said}, where)
    return made | {"norm": "rms-centred"}
