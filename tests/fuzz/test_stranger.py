"""The short runs of the fourth and the fifth fuzzer, and of the laws beside training steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import crossed, stranger
from tests.fuzz.beyond import OF, broken
from tests.fuzz.others import Kind, prepare

KINDS: dict[str, Kind] = {**stranger.KINDS, **crossed.KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_of_every_kind(kind: str, tmp_path: Path) -> None:
    """A result, or a message that says where: of always the same inputs."""
    prepare(tmp_path)
    for number in range(3):
        assert KINDS[kind](random.Random(number), tmp_path) == "", f"{kind} {number}"


@pytest.mark.parametrize("of", OF)
def test_laws_beside_training_steps(of: str) -> None:
    """Of requests that are served, steps of RL and replays: none is broken by a few of each."""
    for seed in range(1, 3):
        assert [*broken(seed, of)] == []
