"""A job over weeks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from sim import goodput
from sim.faults import DAY, run, young_daly

BASE: dict[str, Any] = {
    "gpus": 16384, "step_time": 10.0, "days": 21.0, "save": 2.0, "lag": 30.0, "load": 60.0, "spares": 32,
}  # fmt: skip


def shell(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["goodput", *arguments])


def test_every_second_is_counted_once() -> None:
    """What a run spends on work, saves, losses and restarts adds up to its length."""
    job = goodput.job_of(BASE)
    for seed in range(20):
        assert run(job, seed).total == pytest.approx(21 * DAY)


def test_without_failures_only_saves_cost() -> None:
    """A job that never fails loses the share of its saves and nothing else."""
    job = replace(goodput.job_of(BASE), rates={}, interval=100.0, stall=10.0, lag=0.0)
    assert run(job, 0).goodput == pytest.approx(100 / 110, rel=1e-3)


def test_llama_3_trains_more_than_nine_tenths_of_the_time() -> None:
    """With the rates of Llama 3's 54 days, 16,384 GPUs have its 419 interruptions and more than 90 % of useful time."""
    made = goodput.simulate(goodput.job_of(BASE | {"days": 54.0}), 16384, 20, 0).to_json()
    assert made["low"] > 0.90
    assert made["interruptions"] == pytest.approx(419, rel=0.05)


def test_more_failures_never_help() -> None:
    """Twice the failures, or slower restarts, lower the effective time; more spares never do."""

    def mean(**more: Any) -> float:
        made: float = goodput.simulate(goodput.job_of(BASE | more), 16384, 10, 1).to_json()["goodput"]
        return made

    assert mean(rate_scale=2.0) < mean()
    assert mean(load=600.0) < mean()
    assert mean(spares=0) < mean(spares=64)


def test_the_best_interval_is_near_young_and_daly() -> None:
    """With saves that are durable at once, the simulated optimum is within a factor of two of sqrt(2 C M), and flat."""
    job = goodput.job_of(BASE | {"lag": 0.0, "save": 20.0})
    best, tried = goodput.optimal(job, 16384, 20, 0)
    theory = young_daly(20.0, 1 / sum(job.rates.values()))
    assert theory / 2.01 < best < theory * 2.01
    assert dict(tried)[best] > max(tried[0][1], tried[-1][1])


def test_the_interval_of_confidence_shrinks_and_seeds_repeat() -> None:
    """More replicas narrow the interval; the same seed gives the same bytes, another one another draw."""
    few, many = shell("--step-time", "10 s", "--replicas", "5", "--json"), shell("--step-time", "10 s", "--json")
    assert json.loads(few.output)["half_width"] > json.loads(many.output)["half_width"]
    assert many.output == shell("--step-time", "10 s", "--json").output
    assert many.output != shell("--step-time", "10 s", "--json", "--seed", "1").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--step-time", "10 s", "--rate", "gpu=-1"), "not negative"),
        (("--step-time", "10 s", "--rate", "gpu=often"), "failures per million"),
        (("--step-time", "10 s", "--rate", "gpus=1"), 'did you mean "gpu"'),
        (("--step-time", "10 s", "--rate", "gpu=nan"), "not negative"),
        (("--step-time", "10 s", "--interval", "1 s"), "longer than a save"),
        (("--step-time", "10"), "unit"),
        (
            (
                "--step-time",
                "0 s",
            ),
            "more than 0",
        ),
        (("--step-time", "10 s", "--days", "-1"), "more than 0"),
        ((), "--step-time"),
    ],
)
def test_wrong_input_is_told(arguments: tuple[str, ...], told: str) -> None:
    """Rates that are none, intervals shorter than a save and missing units end with exit code 2 and say so."""
    result = shell(*arguments)
    assert result.exit_code == 2
    assert told in result.output and "Traceback" not in result.output
