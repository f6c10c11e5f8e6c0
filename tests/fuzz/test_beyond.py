"""The short run of the laws beside training steps."""

from __future__ import annotations

import pytest

from tests.fuzz.beyond import OF, broken


@pytest.mark.parametrize("of", OF)
def test_laws_beside_training_steps(of: str) -> None:
    """Of requests that are served, steps of RL and replays: none is broken by a few of each."""
    for seed in range(1, 3):
        assert [*broken(seed, of)] == []
