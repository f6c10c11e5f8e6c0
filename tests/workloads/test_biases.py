"""Biases of attention, of its output, of the feed-forward part and of the head, each with or without the others."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from tests.workloads.small import HIDDEN, LAYERS, TRANSFORMER, scenario
from tests.workloads.test_latent_blocks import step

#: Biases of a model with eight heads of 32, four of keys: attention's projections, the output's, two of 512 up and one
#: down, and the head's 1,000 words.
COUNTS = {
    "qkv_bias": LAYERS * (8 + 2 * 4) * 32,
    "out_bias": LAYERS * HIDDEN,
    "bias": LAYERS * (2 * 512 + HIDDEN),
    "head_bias": 1000,
}


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("biases", [*product([False, True], repeat=len(COUNTS))])
def test_each_bias_is_counted_and_held(
    framework: str, biases: tuple[bool, ...]
) -> None:
    """In the model's figures and on a rank alike."""
    said: dict[str, Any] = TRANSFORMER | dict(zip(COUNTS, biases, strict=True))
    more = sum(n for n, has in zip(COUNTS.values(), biases, strict=True) if has)
    plain, own = (
        total_parameters(load_model(scenario(m).model)) for m in (TRANSFORMER, said)
    )
    assert own == plain + more
    assert step(said, framework).parameters == own
