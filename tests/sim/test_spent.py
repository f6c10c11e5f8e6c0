"""A step is reported as it is after many: with what its GPU's power budget then has left."""

from __future__ import annotations

import pytest

from prestep.sim.engine import engine
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import plan, step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario

MANY = 12


def scenario(layers: int = 8, host: float = 1.0) -> Scenario:
    """A dense model on one GPU, whose products draw more than it may."""
    tables = {
        "model": {"name": "falcon3-7b", "layers": layers},
        "cluster": {"name": "h200-host-2", "gpus": 1, "host_factor": host},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 2048,
            "micro_batch": 1,
        },
    }
    return parse_scenario(tables, "spent")


def last_steps(planned: Planned, steps: int) -> float:
    """Seconds of the last of many steps that begin with a full budget."""
    ends = engine.execute_all(planned, steps).end[0].max(axis=1)
    return float(ends[-1] - ends[-2])


@pytest.mark.parametrize("layers", [3, 4])
def test_the_reported_step_is_like_the_ones_after_it(layers: int) -> None:
    """The third step from a full budget is still shorter; the budget falls. Steps of 35 ms settle to half a per cent."""
    asked = scenario(layers)
    planned = plan(asked)
    run = engine.execute_all(planned, 3)
    assert engine._falling(planned, run) == {0}
    after_many = last_steps(planned, MANY)
    assert last_steps(planned, 3) < after_many * (1 - 1e-3)
    assert step_time(asked) == pytest.approx(after_many, rel=5e-3)


def test_a_slower_host_is_not_faster_for_it() -> None:
    """It only spends the budget later; the clock that it leaves has not settled to the last digit."""
    usual, slow = (step_time(scenario(host=factor)) for factor in (1.0, 4.0))
    assert slow >= usual * (1 - 1e-4)
