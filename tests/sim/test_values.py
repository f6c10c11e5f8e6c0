"""The five values of a prediction: each is frozen and plain, and who holds one goes on from there."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest

from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.engine.execution import Run, Timed
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, predict, reported
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools.catalog import find_scenario

#: One of each: data-parallel, with chains (Megatron), with a pipeline.
SCENARIOS = {
    "ddp": ("mlp-ddp4", []),
    "chains": ("llama1b-ddp4", ["training.framework=megatron", "model.layers=2"]),
    "pipeline": ("llama8b-pp4-1f1b", ["model.layers=4"]),
}


@pytest.fixture(params=SCENARIOS, scope="module")
def scenario(request: pytest.FixtureRequest) -> Scenario:
    name, changes = SCENARIOS[request.param]
    return load_scenario(find_scenario(name), changes)


@pytest.fixture(scope="module")
def planned(scenario: Scenario) -> Planned:
    return plan(scenario)


def test_the_walk_along_the_values_is_the_prediction(
    scenario: Scenario, planned: Planned
) -> None:
    """Plan, execute and report, one after the other, say what `predict` says."""
    walked = reported(planned, execute(planned), prices=True)
    assert walked.to_json() == predict(scenario, prices=True).to_json()


def test_a_planned_step_is_a_value(planned: Planned) -> None:
    """It has no closures: a copy by way of bytes runs as the original does."""
    copy = pickle.loads(pickle.dumps(planned))
    one, other = execute(planned), execute(copy)
    assert all(np.array_equal(a, b) for a, b in zip(one.end, other.end, strict=True))
    assert step_time(planned, one) == step_time(copy, other)


def test_a_changed_step_leaves_the_original_alone(planned: Planned) -> None:
    """Half of every link's bandwidth is never faster; the step that it was made from runs as before."""
    before = step_time(planned, execute(planned))
    slower = replace(planned, bandwidth=planned.bandwidth / 2)
    assert step_time(slower, execute(slower)) >= before
    assert step_time(planned, execute(planned)) == before
    with pytest.raises(FrozenInstanceError):
        planned.bandwidth = slower.bandwidth  # type: ignore[misc]


def test_a_prediction_does_not_hold_its_run(planned: Planned) -> None:
    """Nothing that it consists of is a planned step or a run."""
    found: list[object] = [reported(planned, execute(planned))]
    for value in found:
        assert not isinstance(value, Timed | Run)
        if is_dataclass(value):
            parts = [getattr(value, field.name) for field in fields(value)]
            found += [part for part in parts if is_dataclass(part)]
    assert len(found) > len(fields(Prediction)) / 4
