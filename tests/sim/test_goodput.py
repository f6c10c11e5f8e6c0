"""A job over weeks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.reliability import goodput
from prestep.sim.reliability.degraded import plain_speeds
from prestep.sim.reliability.job import DAY, run, young_daly

BASE: dict[str, Any] = {
    "gpus": 16384,
    "step_time": 10.0,
    "days": 21.0,
    "save": 2.0,
    "lag": 30.0,
    "load": 60.0,
    "spares": 32,
}


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
    made = goodput.simulate(
        goodput.job_of(BASE | {"days": 54.0}), 16384, 20, 0
    ).to_json()
    assert made["low"] > 0.90
    assert made["interruptions"] == pytest.approx(419, rel=0.05)


def test_more_failures_never_help() -> None:
    """Twice the failures, or slower restarts, lower the effective time; more spares never do."""

    def mean(**more: Any) -> float:
        made: float = goodput.simulate(
            goodput.job_of(BASE | more), 16384, 10, 1
        ).to_json()["goodput"]
        return made

    assert mean(rate_scale=2.0) < mean()
    assert mean(load=600.0) < mean()
    assert mean(spares=0) < mean(spares=64)


def test_the_best_interval_is_near_young_and_daly() -> None:
    """With saves that are durable at once, the simulated optimum is within a factor of two of sqrt(2 C M), and flat."""
    job = goodput.job_of(BASE | {"lag": 0.0, "save": 20.0})
    found = goodput.optimal(job, 16384, 20, 0)
    best, tried = found.interval, [(one.interval, one.goodput) for one in found.tried]
    theory = young_daly(20.0, 1 / sum(job.rates.values()))
    assert theory / 2.01 < best < theory * 2.01
    assert dict(tried)[best] > max(tried[0][1], tried[-1][1])


def test_the_interval_of_confidence_shrinks_and_seeds_repeat() -> None:
    """More replicas narrow the interval; the same seed gives the same bytes, another one another draw."""
    few, many = (
        shell("--step-time", "10 s", "--replicas", "5", "--json"),
        shell("--step-time", "10 s", "--json"),
    )
    assert json.loads(few.output)["half_width"] > json.loads(many.output)["half_width"]
    assert many.output == shell("--step-time", "10 s", "--json").output
    assert many.output != shell("--step-time", "10 s", "--json", "--seed", "1").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--step-time", "10 s", "--rate", "gpu=-1"), "not negative"),
        (("--step-time", "10 s", "--rate", "gpu=often"), "failures per million"),
        (
            ("--step-time", "10 s", "--takes", "rack=99", "--gpus", "64"),
            "no more hosts",
        ),
        (
            ("llama1b-ddp4", "--set", "faults.rates.gpux=3"),
            "llama1b-ddp4.toml: faults.rates",
        ),
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
        (("--step-time", "10 s", "--days", "0"), "more than 0"),
        (("--step-time", "10 s", "--days", "1e20"), "at most 1,000,000 failures"),
        (("--step-time", "10 s", "--replicas", "1" + "0" * 20), "--replicas"),
        (("--step-time", "10 s", "--rate", "gpu=1e12"), "a second between failures"),
        (("--step-time", "10 s", "--takes", "rack=some"), "rack=8"),
        (("--step-time", "10 s", "--takes", "rac=8"), 'did you mean "rack"'),
        (("--step-time", "10 s", "--degraded", "--gpus", "100"), "without a rest"),
        (("--step-time", "10 s", "--degraded", "--gpus", "8"), "two replicas"),
        (("llama8b-pp4-1f1b", "--degraded"), "two whole replicas"),
        (("llama1b-ddp4", "--replica-gpus", "2"), "a scenario too"),
        (("llama1b-ddp4", "--set", "faults.rates.gpu=often"), "failures per million"),
        ((), "--step-time"),
    ],
)
def test_wrong_input_is_told(arguments: tuple[str, ...], told: str) -> None:
    """Rates that are none, intervals shorter than a save and missing units end with exit code 2 and say so."""
    result = shell(*arguments)
    assert result.exit_code == 2
    assert told in result.output and "Traceback" not in result.output


def test_a_job_that_goes_on_with_fewer_hosts_waits_less() -> None:
    """Without spares a degraded job waits less and does more; what fewer hosts did not do is a share of its own."""
    few = (
        "--step-time",
        "10 s",
        "--days",
        "21",
        "--spares",
        "0",
        "--replicas",
        "10",
        "--gpus",
        "1024",
        "--json",
    )
    waits, goes_on = (
        json.loads(shell(*few, *more).output) for more in ((), ("--degraded",))
    )
    assert goes_on["goodput"] > waits["goodput"] and waits["shares"]["degraded"] == 0
    assert (
        goes_on["shares"]["waiting"] < waits["shares"]["waiting"]
        and goes_on["shares"]["degraded"] > 0
    )
    assert sum(goes_on["shares"].values()) == pytest.approx(1.0)


def test_larger_replicas_lose_more() -> None:
    """A missing host costs its whole replica: the larger it is, the slower the degraded job."""
    speeds = [plain_speeds(1024, 8, gpus)[1] for gpus in (8, 16, 128)]
    assert speeds == pytest.approx([127 / 128, 63 / 64, 7 / 8])


def test_enough_spares_and_degraded_running_are_the_same() -> None:
    """As long as there are spares, running on with fewer hosts never happens."""
    plenty = (
        "--step-time",
        "10 s",
        "--days",
        "7",
        "--spares",
        "5000",
        "--replicas",
        "5",
        "--json",
    )
    one, other = (
        json.loads(shell(*plenty, *more).output) for more in ((), ("--degraded",))
    )
    assert one["goodput"] == other["goodput"]


def test_a_rack_takes_its_hosts_along() -> None:
    """Racks that fail together need more spares than the same number of failures of single hosts."""
    rate = (
        "--rate-scale",
        "0",
        "--rate",
        "rack=10",
        "--spares",
        "8",
        "--step-time",
        "10 s",
        "--days",
        "21",
        "--json",
    )
    rack, host = (
        json.loads(shell(*rate, "--takes", f"rack={hosts}", "--gpus", "2048").output)
        for hosts in (8, 1)
    )
    assert rack["shares"]["waiting"] > 2 * host["shares"]["waiting"]
    assert (
        rack["interruptions_by_component"]["gpu"]
        == 0
        < rack["interruptions_by_component"]["rack"]
    )


def test_the_optimum_has_an_interval_of_confidence() -> None:
    """The best interval lies between those that are not worse; every other is behind it by more than the noise."""
    job = goodput.job_of(BASE | {"lag": 0.0, "save": 20.0})
    made = goodput.optimal(job, 16384, 20, 0).to_json()
    assert made["optimal_low"] <= made["optimal_interval"] <= made["optimal_high"]
    assert made["young_daly_behind"] <= 2 * made["young_daly_behind_half_width"] + 0.002
    for one in made["tried"]:
        inside = made["optimal_low"] <= one["interval"] <= made["optimal_high"]
        assert inside or one["behind"] > one["behind_half_width"]


def test_a_scenario_says_what_befalls_it() -> None:
    """[faults] has rates, spares and times; options come after it."""
    more = (
        "--set",
        "faults.rates.gpu=900",
        "--set",
        "faults.spares=3",
        "--set",
        "faults.detect=9 s",
    )
    run_of = (
        "llama1b-ddp4",
        "--set",
        "model.layers=2",
        *more,
        "--replicas",
        "3",
        "--json",
    )
    made, other = (
        json.loads(shell(*run_of, *last).output)
        for last in ((), ("--rate", "gpu=0", "--rate-scale", "0"))
    )
    assert made["interruptions_by_component"]["gpu"] > 1 and other["interruptions"] == 0
    assert made["shares"]["detecting"] > 0 == other["shares"]["detecting"]


@pytest.mark.slow
def test_a_scenario_goes_on_with_the_step_of_fewer_replicas() -> None:
    """Progress with a host missing comes from the step of the smaller job: near the share of replicas that are left."""
    cluster = (
        "--set",
        "cluster.name=dgx-h100-superpod",
        "--set",
        "cluster.hosts=4",
        "--set",
        "parallel.dp=32",
        "--set",
        "training.global_batch=64",
    )
    made = shell(
        "llama1b-ddp4",
        *cluster,
        "--set",
        "model.layers=2",
        "--degraded",
        "--replicas",
        "2",
        "--json",
    )
    assert made.exit_code == 0, made.output
    speeds = json.loads(made.output)["progress_with_hosts_missing"]
    assert speeds[0] == 1.0 and 0.70 < speeds[1] < 0.80


QUIET = ("--step-time", "10s", "--gpus", "384", "--days", "30", "--json")


def quiet(*options: str) -> Any:
    return json.loads(shell(*QUIET, *options).output)


def test_slow_hosts_leave_the_failures_as_they_are() -> None:
    """Without slow hosts nothing changes; with them every second is still counted once."""
    job = goodput.job_of(BASE)
    slow = goodput.job_of(BASE | {"bad": 0.001, "slow_rate": 5.0, "preflight": "r2"})
    for seed in range(10):
        assert run(slow, seed).total == pytest.approx(21 * DAY)
        assert run(job, seed).slow == run(job, seed).testing == 0


def test_a_job_whose_slow_host_nobody_notices_loses_its_slowness() -> None:
    """A host that is slow from the start takes its share of all work, and what is noticed takes it until then."""
    nothing = {"rates": (), "rate_scale": 0.0, "save": 0.0, "interval": "1 h"}
    for notice, share in (("1000 d", 1.0), ("7 d", 7 / 21)):
        told = BASE | nothing | {"bad": 1.0, "slowdown": 1.25, "notice": notice}
        job = goodput.job_of(told | {"gpus": 1, "lag": 0.0})
        with_one = next(s for s in range(100) if run(job, s).slow_at_start == 1)
        lost = run(job, with_one).slow / run(job, with_one).total
        assert lost == pytest.approx(0.2 * share, rel=0.01)


def test_tests_before_the_start_find_bad_hosts() -> None:
    """Longer levels find more; where hosts are slow for days the tests earn more than they take."""
    bad = ("--bad", "0.0052", "--notice", "7 d", "--rate-scale", "0")
    levels = [quiet(*bad, "--preflight", level) for level in ("r1", "r2", "r3")]
    found = [made["slow_hosts"]["found"] for made in levels]
    assert found == sorted(found) and found[2] > 1.5
    assert levels[2]["goodput"] > quiet(*bad)["goodput"] + 0.02
    assert all(made["shares"]["testing"] > 0 for made in levels)


def test_tests_that_find_nothing_cost_their_time() -> None:
    """Without slow hosts tests only take time."""
    assert quiet("--preflight", "r4")["goodput"] < quiet()["goodput"]


@pytest.mark.parametrize(
    "options",
    [
        ("--bad", "2"),
        ("--slowdown", "0.5"),
        ("--finds", "-1"),
        ("--slow-rate", "-1"),
        ("--preflight", "r9"),
    ],
)
def test_slow_hosts_that_cannot_be(options: tuple[str, ...]) -> None:
    """Shares above one, jobs that slow hosts speed up and unknown levels are refused by name."""
    result = shell(*QUIET, *options)
    assert result.exit_code == 2 and options[0] in result.output
