"""Replicas of a step with noise, as a user types them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.planning.jitter import NAMES, PAUSE, Pauses, jitter_of
from prestep.sim.planning.noise import _lognormal, _slowest
from prestep.workloads.job.faults import Faults
from tests.sample import together

RUN = ["run", "llama1b-ddp4", "--json", "--set", "model.layers=2"]


def told(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*RUN, *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*RUN, *arguments])
    assert result.exit_code == 2 and "Traceback" not in result.output
    return result.output


def only(**noise: float) -> list[str]:
    """Changes that leave no noise but this."""
    values = dict.fromkeys((*NAMES, PAUSE), 0.0) | noise
    return [
        part
        for name, value in values.items()
        for part in ("--set", f"faults.jitter_{name}={value}")
    ]


def test_without_noise_every_replica_is_the_plain_step() -> None:
    """The mean of replicas without noise is the plain step to the last digit, and its interval has no width."""
    plain = told()
    for silent in (["--set", "faults.jitter=0"], only()):
        made = told("--replicas", "5", *silent)
        assert made["replicas"]["mean"] == made["step_time"] == plain["step_time"]
        assert made["replicas"]["half_width"] == made["replicas"]["std"] == 0


def test_a_thousandth_of_the_noise_is_nearly_the_plain_step() -> None:
    """The replicas' own runs, which draw, tend to the plain step as the noise goes to nothing."""
    made = told("--replicas", "2", "--set", "faults.jitter=1e-6")
    assert made["replicas"]["mean"] == pytest.approx(made["step_time"], rel=1e-5)


def test_a_seed_repeats_the_runs() -> None:
    """The same seed gives the same times, another one others; more replicas begin with the same ones."""
    first, again, other = (
        told("--replicas", "3", "--seed", seed)["replicas"] for seed in ("7", "7", "8")
    )
    assert first == again and first["step_times"] != other["step_times"]
    assert (
        told("--replicas", "4", "--seed", "7")["replicas"]["step_times"][:3]
        == first["step_times"]
    )


def test_replicas_leave_the_plain_result_alone() -> None:
    """Everything but `replicas` is what the run prints without them."""
    made = told("--replicas", "2")
    del made["replicas"]
    assert made == told()


def test_the_interval_holds_the_mean_and_the_order_of_percentiles() -> None:
    """low < mean < high; the smallest, the percentiles and the largest come in order."""
    made = told("--replicas", "12")["replicas"]
    assert (
        made["low"] < made["mean"] < made["high"]
        and made["replicas"] == len(made["step_times"]) == 12
    )
    ordered = [made["min"], *made["percentiles"].values(), made["max"]]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("name", NAMES)
def test_more_noise_of_a_kind_spreads_more(name: str) -> None:
    """Each kind of noise alone makes the step differ from run to run, and the more of it the more."""
    # A slow host with little work for its GPU is the bottleneck, so that its noise shows.
    bound = ("cluster.host_factor=4", "training.seq_len=128", "model.vocab=1024")
    small = [
        part
        for change in (bound if name in ("launch", "host") else ())
        for part in ("--set", change)
    ]
    little, much = (
        told("--replicas", "6", *only(**{name: value}), *small)["replicas"]["std"]
        for value in (0.01, 0.5)
    )
    assert 0 < little < much


def test_the_slowest_of_many_waits_longer() -> None:
    """A rank that stands for n is slower the larger n is, by the expected largest of n normals."""
    draw = np.random.default_rng(0)
    means = [_slowest(draw, 4000, n).mean() for n in (1, 4, 64, 16384)]
    assert means == pytest.approx([0.0, 1.03, 2.37, 3.98], abs=0.06)


def test_factors_have_mean_one() -> None:
    """Noise is no slowness: the mean factor is 1 and its relative standard deviation the one that was asked for."""
    factors = _lognormal(np.random.default_rng(1).standard_normal(200_000), 0.3)
    assert factors.mean() == pytest.approx(
        1.0, abs=0.003
    ) and factors.std() == pytest.approx(0.3, rel=0.02)


def test_folding_waits_for_the_slowest() -> None:
    """The rank that stands for four is hardly faster than four that are drawn one by one, and by less than the noise slower.

    Noise of kernels is drawn once for the four: over 1,000 replicas that makes it 0.7 to 0.9 % of a step faster.
    """
    noise = ["--replicas", "60", *only(gpu=0.05, kernel=0.05)]
    folded, apart = (
        told(*noise)["replicas"],
        told(*noise, "--set", "faults.slow_rank=0")["replicas"],
    )
    assert 0.0 < apart["slower"] < folded["slower"] + 0.01 < apart["slower"] + 0.03


def test_what_is_said_has_its_own_grade() -> None:
    """A value of the scenario is `said`, the others keep the grade of their measurement."""
    made = jitter_of(Faults(jitter_host=0.1)).to_dict()
    assert (
        made["host"] == {"value": 0.1, "evidence": "said"}
        and made["gpu"]["evidence"] == "fitted"
    )


@together(
    ("arguments", "expected"),
    [
        (["--replicas", "0"], "--replicas"),
        (["--seed", "3"], "--replicas N"),
        (["--replicas", "2", "--max-micro-batch"], "max-micro-batch"),
        (["--replicas", "2", "--set", "faults.jitter_gpu=-0.1"], "jitter_gpu"),
        (["--replicas", "2", "--set", "faults.jitter_gpu=often"], "jitter_gpu"),
        (["--replicas", "2", "--set", "faults.jitter_link=100"], "up to 10"),
        (["--replicas", "2", "--set", "faults.jitter=1e9"], "up to 10"),
        (["--replicas", "2", "--set", "faults.jitter=1e308"], "at most 1e+24"),
        (["--replicas", "2", "--set", "faults.jitter_pause=1e4"], "at most 1000"),
    ],
)
def test_mistakes(arguments: list[str], expected: str) -> None:
    """Replicas that are none, seeds without replicas and noise that is no share are refused with their place."""
    assert expected in refused(*arguments)


def test_noise_that_is_not_drawn_is_said() -> None:
    """Noise in a scenario that is run once has no effect, and the result says so."""
    assert any(
        "--replicas" in warning
        for warning in told("--set", "faults.jitter_gpu=0.1")["warnings"]
    )


def test_noise_of_the_whole_step_does_not_even_out() -> None:
    """What all ranks have in common spreads a step as much on four ranks as it is wide, and nobody waits because of it."""
    noise = ["--replicas", "30", *only(step=0.05)]
    made = told(*noise)["replicas"]
    assert made["std"] / made["mean"] == pytest.approx(0.05, rel=0.4)
    assert abs(made["slower"]) < 0.02
    own = told("--replicas", "30", *only(gpu=0.05))
    assert own["replicas"]["std"] < made["std"]
    assert own["replicas"]["slower"] > 0.03


def test_pauses_make_steps_longer_and_never_shorter() -> None:
    """Alone, pauses leave no replica faster than the plain step, and the more of them the slower the mean."""
    few, many = (
        told("--replicas", "12", *only(pause=rate))["replicas"] for rate in (2.0, 40.0)
    )
    plain = told()["step_time"]
    assert min(few["step_times"]) >= plain * (1 - 1e-9)
    assert plain < few["mean"] < many["mean"]


def test_more_gpus_pause_more_often_and_long_pauses_are_rare() -> None:
    """How many befall a job grows with GPUs and time; those ten times as long are rarer by their tail."""
    pauses = Pauses(rate=0.01, tail=1.57, least=5e-3, most=1.0)
    draw = np.random.default_rng(2)
    counts = [len(pauses.drawn(draw, gpus, 10.0)) for gpus in (8, 800, 80_000)]
    assert counts == sorted(counts) and counts[2] == pytest.approx(8000, rel=0.05)
    lengths = pauses.drawn(draw, 1_000_000, 10.0)
    assert lengths.min() >= 5e-3 and lengths.max() <= 1.0
    share = float((lengths > 0.05).mean())
    assert share == pytest.approx(10**-1.57, rel=0.05)


def test_pauses_spread_a_step_of_thousands_of_gpus_most() -> None:
    """By the bundled rate, a pause befalls few steps of eight GPUs and most steps of thousands that take two seconds."""
    pauses = jitter_of(Faults()).pauses
    draw = np.random.default_rng(3)
    few = sum(len(pauses.drawn(draw, 8, 0.45)) > 0 for _ in range(2000))
    most = sum(len(pauses.drawn(draw, 5120, 2.2)) > 0 for _ in range(2000))
    assert few < 20 and most > 1800
