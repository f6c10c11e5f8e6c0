"""Predicting a step: what is refused before anything is executed."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.predict import simulate
from sim.spec import parse_scenario


def test_every_mistake_of_a_scenario_is_in_the_error() -> None:
    """What is not simulated, and what does not fit the cluster, are refused together."""
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": {"name": "llama3-1b-plain"},
        "training": {"precision": "fp16", "recompute": "selective"},
        "parallel": {"dp": 3},
    }
    with pytest.raises(InputError) as error:
        simulate(parse_scenario(tables, "a.toml"))
    assert {mistake.key for mistake in error.value.mistakes} == {"parallel", "training.precision", "training.recompute"}
    assert len(str(error.value).splitlines()) == 3
