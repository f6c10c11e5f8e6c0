"""Predicting a step: what is refused before anything is executed."""

from __future__ import annotations

import gc
import weakref

import pytest

from prestep.sim.errors import InputError
from prestep.sim.exporters.terminal import render
from prestep.sim.predict import execute, plan, predict, reported
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.tools.catalog import find_scenario
from tests.executed import executed


def test_every_mistake_of_a_scenario_is_in_the_error() -> None:
    """What is not simulated, and what does not fit the cluster, are refused together."""
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": {"name": "llama3-1b-plain"},
        "training": {"recompute": "selective"},
        "parallel": {"dp": 3, "cp": 2},
    }
    with pytest.raises(InputError) as error:
        executed(parse_scenario(tables, "a.toml"))
    assert {mistake.key for mistake in error.value.mistakes} == {
        "parallel",
        "training.recompute",
    }
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("model", "unit"),
    [
        ({"name": "resnet50"}, "images"),
        ({"kind": "mlp", "sizes": [64, 64]}, "samples"),
        ({"name": "llama3-125m-plain"}, "tokens"),
    ],
)
def test_what_is_counted_per_second(model: dict[str, object], unit: str) -> None:
    """Images of a convolutional network, samples of an MLP, tokens of a transformer, in page and JSON."""
    result = predict(
        parse_scenario(
            {"cluster": {"name": "h200-host-4"}, "model": model, "parallel": {"dp": 4}},
            "a.toml",
        )
    )
    assert result.scenario["sample"] == unit
    assert f"{unit}/s per GPU" in render(result)


def test_convolutions_are_model_flops() -> None:
    """ResNet-50 takes 3 x 8.2 GFLOP an image, all but its last product in convolutions."""
    result = predict(
        parse_scenario(
            {"cluster": {"name": "dgx-h100", "gpus": 1}, "model": {"name": "resnet50"}},
            "a.toml",
        )
    )
    flops = result.tflops_per_gpu * 1e12 / result.tokens_per_second_per_gpu
    assert flops == pytest.approx(3 * 8.2e9, rel=0.03)


def test_a_predicted_step_is_given_back_at_once() -> None:
    """Nothing that holds itself keeps its graph and its run until somebody looks for garbage."""
    scenario = load_scenario(find_scenario("llama1b-ddp4"))
    gc.collect()
    gc.disable()
    try:
        planned = plan(scenario)
        run = execute(planned)
        reported(planned, run)
        ends = [weakref.ref(planned.graph), weakref.ref(run)]
        del planned, run
        assert [end() for end in ends] == [None, None]
    finally:
        gc.enable()
