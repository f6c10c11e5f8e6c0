"""Differences of two steps: what is off in both is off by the same, and what cannot be is not in the interval."""

from __future__ import annotations

import math

import pytest

from prestep.sim.analysis.constants import Grounds
from prestep.sim.analysis.uncertainty import METHOD as LINEAR
from prestep.sim.analysis.uncertainty import difference
from prestep.sim.costs.spreads import quantile
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies import paired
from prestep.sim.studies.paired import METHOD, Side, interval_of, shifted
from prestep.sim.tools.catalog import find_scenario
from tests.executed import of, step_time

SMALL = ("training.seq_len=512", "cluster.name=dgx-h100", "cluster.gpus=4")
HALL = "examples/oversubscribed-spine.toml"  # bytes over its spine bound the step
SHORT = "model.name=llama3-1b-plain"


def side(*changes: str, scenario: str = "llama1b-ddp4") -> Side:
    planned = plan(load_scenario(find_scenario(scenario), changes))
    return Side(planned, reported(planned, execute(planned)))


def test_a_step_and_itself_differ_by_nothing() -> None:
    """Whatever is off: the same step twice is the same."""
    found = interval_of(side(*SMALL), side(*SMALL), again=True)
    assert found is not None
    assert (found["low"], found["high"], found["method"]) == (0.0, 0.0, METHOD)


def test_a_link_that_bounds_both_steps_is_off_in_both() -> None:
    """Twice the spine never costs time, and a slower network than predicted makes it save more."""
    base = side(SHORT, "spine.bandwidth=0.25x", scenario=HALL)
    changed = side(SHORT, "spine.bandwidth=0.5x", scenario=HALL)
    saved = changed.result.step_time - base.result.step_time
    found = interval_of(base, changed, again=True)
    assert found is not None
    assert found["low"] < saved < found["high"] < 0


def test_what_moves_the_path_is_not_a_straight_line() -> None:
    """Where a change moves the step from a link to its kernels, no end of the interval has the wrong sign."""
    base = side(SHORT, scenario=HALL)
    changed = side(SHORT, "spine.bandwidth=8x", scenario=HALL)
    found = interval_of(base, changed, again=True)
    assert found is not None
    assert found["low"] < changed.result.step_time - base.result.step_time
    assert found["high"] <= 1e-9


def test_kernels_alone_are_a_straight_line() -> None:
    """On one GPU a step is the sum of its kernels: simulated and linearised, the interval is nearly the same."""
    alone = ("parallel.dp=1", "cluster.gpus=1")
    base, changed = side(*alone), side(*alone, "training.micro_batch=4")
    assert base.result.uncertainty is not None
    assert changed.result.uncertainty is not None
    straight = difference(
        base.result.uncertainty.to_dict(), changed.result.uncertainty.to_dict()
    )
    found = interval_of(base, changed, again=True)
    assert found is not None
    assert straight["method"] == LINEAR
    assert found["high"] - found["low"] == pytest.approx(
        straight["high"] - straight["low"], rel=0.15
    )


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("llama1b-ddp4", ()),
        ("llama1b-ddp4", ("training.framework=megatron", "parallel.tp=2", "parallel.dp=2")),
    ],
)  # fmt: skip
def test_factors_of_one_change_nothing(scenario: str, changes: tuple[str, ...]) -> None:
    """Nothing is off: the step is the same to the bit. Everything twice as slow: the step is."""
    base = side(*changes, scenario=scenario)
    grounds = Grounds(base.planned)
    # How fast the host is and what it does are off by the same seconds: one of them.
    keys = [key for key in base.parts if key[0] != "speed of the host"]
    same = shifted(base.planned, grounds, dict.fromkeys(keys, 1.0))
    assert step_time(of(same)) == base.result.step_time
    twice = shifted(base.planned, grounds, dict.fromkeys(keys, 2.0))
    assert step_time(of(twice)) == pytest.approx(2 * base.result.step_time, rel=0.02)


def test_shares_of_a_chain_add_up() -> None:
    """What a layer computes and what it waits for, with pauses, is all of its time."""
    changes = ("training.framework=megatron", "parallel.tp=2", "parallel.dp=2")
    planned = plan(load_scenario(find_scenario("llama1b-ddp4"), changes))
    grounds = Grounds(planned)
    for at in range(len(planned.graph.kernels)):
        assert math.fsum(s for _, s in grounds.of_kernel(at)) == pytest.approx(1, 1e-6)


@pytest.mark.parametrize("again", [True, False])
def test_large_steps_and_those_of_several_are_linearised(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Their interval says so."""
    if again:
        monkeypatch.setattr(paired, "MOST_OPERATIONS", 10)
    base, changed = side(*SMALL), side(*SMALL, "nvlink.bandwidth=0.5x")
    found = interval_of(base, changed, again)
    assert found is not None
    assert found["method"] == LINEAR
    assert found["spread"] == pytest.approx(
        (found["high"] - found["low"]) / 2 / quantile()
    )
