"""Hybrids under NeMo Automodel's engine: FSDP2 gathers and reduces every parameter of every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from tests.workloads.test_automodel import peak, scenario, sent

MAMBA: dict[str, Any] = {
    "layers": 7,
    "layer_pattern": "M-M*-M-",
    "mamba_heads": 32,
    "mamba_groups": 8,
}


@pytest.mark.parametrize("pattern", ["M-M*-M-", "MMMMMMM", "M*-****"])
def test_all_parameters_of_a_hybrid_are_gathered_and_reduced(pattern: str) -> None:
    """Kept layers: once in a step each, by the counts of the model."""
    s = scenario(
        3, model=MAMBA | {"layer_pattern": pattern}, reshard_after_forward=False
    )
    whole = total_parameters(load_model(s.model))
    assert sent(s, "all_gather") == [2 * whole]
    assert sent(s, "reduce_scatter") == [4 * whole]


def test_freed_layers_of_a_hybrid_take_less_memory() -> None:
    kept = scenario(1, model=MAMBA, reshard_after_forward=False)
    freed = scenario(1, model=MAMBA, reshard_after_forward=True)
    assert peak(freed) < peak(kept)
    assert sent(freed, "all_gather")[0] > sent(kept, "all_gather")[0]
