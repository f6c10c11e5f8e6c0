"""Phi-1.5 and 2, whose parts are beside each other.

Source: transformers, models/phi/{configuration,modeling}_phi.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import Config, activation


def phi(config: Config, where: str) -> Config:
    """The activation, whose name files may leave out."""
    return {"activation": activation(config["hidden_act"], where, "hidden_act")}
