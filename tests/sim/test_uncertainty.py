"""The interval of a step time: laws of errors that add up, and what a user sees of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep.cli import main
from prestep.sim.analysis.constants import Constant
from prestep.sim.analysis.uncertainty import (
    Part,
    Uncertainty,
    difference,
    interval,
)
from prestep.sim.costs import load_gpu
from prestep.sim.costs.spreads import quantile, widths
from prestep.sim.exporters import _words
from prestep.sim.graph.kernel import Kernel

GEMM, ATTENTION = (
    Constant("gemm", "gemm bf16", "measured"),
    Constant("attention", "aten _scaled_dot_product_cudnn_attention bf16", "fitted"),
)
TIMES = st.floats(1e-6, 10.0)


def of(*args: str) -> dict[str, object]:
    made = CliRunner().invoke(main, [*args, "--json"])
    assert made.exit_code == 0, made.output
    return dict(json.loads(made.stdout))


@pytest.fixture(scope="module")
def plain() -> dict[str, object]:
    return of("run")


@given(TIMES, TIMES)
def test_interval_holds_the_step_and_grows_with_it(one: float, other: float) -> None:
    """The step lies inside, low and high are equally far by factor, and twice the step has twice the bounds."""
    made, twice = (
        interval({GEMM: k * one, ATTENTION: k * other}, k * (one + other))
        for k in (1.0, 2.0)
    )
    step = one + other
    assert made.low < step < made.high
    assert math.isclose(made.low * made.high, step * step)
    assert math.isclose(twice.high, 2 * made.high)


@given(TIMES)
def test_errors_of_one_constant_count_together_and_of_two_do_not(time: float) -> None:
    """All time on one constant is less sure than the same time on two constants as good as it."""
    other = GEMM._replace(name="aten bmm bf16")
    assert (
        interval({GEMM: 2 * time}, 2 * time).spread
        > interval({GEMM: time, other: time}, 2 * time).spread
    )


@given(TIMES, TIMES)
def test_guesses_widen(one: float, other: float) -> None:
    """A constant that is guessed widens the interval, and its share of the time is told."""
    guess = GEMM._replace(grade="guess")
    sure, unsure = (
        interval({GEMM: one, ATTENTION: other}, one + other),
        interval({guess: one, ATTENTION: other}, one + other),
    )
    assert unsure.spread > sure.spread
    assert sure.guessed == 0.0
    assert math.isclose(unsure.guessed, one / (one + other))


@given(TIMES)
def test_what_two_runs_share_cancels(time: float) -> None:
    """The difference of a run with itself is certain: nothing. Of different ones it is wider than nothing."""
    base, longer = (interval({GEMM: k * time}, k * time).to_dict() for k in (1.0, 1.5))
    same = difference(base, base)
    assert (same["low"], same["high"]) == (0.0, 0.0)
    found = difference(base, longer)
    assert found["low"] < 0.5 * time < found["high"]
    assert found["high"] - found["low"] < longer["high"] - longer["low"]


def test_past_the_measured_sizes_it_widens_and_warns() -> None:
    """Two octaves past the table: three times the spread, and a sentence that says how far."""
    near, far = interval({GEMM: 1.0}, 1.0), interval({GEMM: 1.0}, 1.0, {GEMM: 2.0})
    spread = {part.constant: part.spread for part in far.parts}
    assert spread["gemm bf16"] == pytest.approx(3 * widths()["gemm"]["measured"])
    assert not near.warnings
    assert far.warnings == (
        "gemm bf16: up to 4 times the measured sizes, 100.0% of the step",
    )


def test_what_hardly_counts_is_told_in_one_sentence() -> None:
    """Three constants past their tables: a large one alone, two small ones together, and nothing where it is 0.0 %."""
    small, tiny = (GEMM._replace(name=f"gemm {name}") for name in ("fp8", "tf32"))
    times = {GEMM: 0.99, small: 0.006, tiny: 0.004}
    far = interval(times, 1.0, dict.fromkeys(times, 2.0)).warnings
    assert len(far) == 2 and far[1].startswith("2 more") and "1.0% of" in far[1]
    assert not interval({GEMM: 1e-6}, 1.0, {GEMM: 2.0}).warnings


def test_a_gpu_says_how_far_a_kernel_lies_past_its_table() -> None:
    """A measured size is not past it; a size far larger than any measured one is, by octaves."""
    gpu = load_gpu("h200")
    assert gpu.basis(Kernel("aten mm", (4096, 4096, 4096), "bf16", "nt")).octaves == 0.0
    one, two = (
        gpu.basis(Kernel("aten mm", (2**k, 4096, 4096), "bf16", "nt")).octaves
        for k in (26, 27)
    )
    assert one > 1.0
    assert two == pytest.approx(one + 1)


def test_a_result_has_its_interval(plain: dict[str, object]) -> None:
    """`run --json`: low < step < high, parts add up to the whole critical path, the method is named."""
    sure = plain["uncertainty"]
    assert isinstance(sure, dict)
    step = plain["step_time"]
    assert isinstance(step, float)
    assert sure["low"] < step < sure["high"]
    parts = [part for part in sure["parts"] if part["constant"] != "run to run"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(step)
    assert sure["nominal"] == 0.9
    assert "linearised" in sure["method"]
    spread = (
        math.hypot(*(part["seconds"] * part["spread"] for part in sure["parts"])) / step
    )
    assert sure["high"] == pytest.approx(step * math.exp(quantile() * spread))


def test_the_page_shows_it() -> None:
    """`run` prints the interval, and how far off its like were; where none were measured, the share of guesses."""
    page = CliRunner().invoke(main, ["run"]).stdout
    assert "90 % interval" in page
    assert "measured steps, none of them fitted" in page
    assert "of the step rests on guesses" not in page
    alone = CliRunner().invoke(main, ["run", "--cluster", "gh200-quad"]).stdout
    assert "of the step rests on guesses" in alone
    assert "expected error" not in alone


@pytest.mark.parametrize(
    ("host", "kernel", "words"),
    [
        (0.9, 0.05, ", most of them the speed of the host"),
        (0.05, 0.9, ", most of them aten add"),
        (0.4, 0.4, ""),
        (0.3, 0.0, ""),
    ],
)
def test_what_most_of_a_step_is_guessed_by_is_named(
    host: float, kernel: float, words: str
) -> None:
    """Where guesses are more than half of a step, and one of them more than half of all guesses, it is named."""
    parts = (
        Part("host", "guess", host, 0.3),
        Part("aten add", "guess", kernel, 0.3),
        Part("gemm", "measured", 1.0 - host - kernel, 0.05),
    )
    made = Uncertainty(0.9, 1.1, 0.1, host + kernel, parts)
    assert _words.interval(made).endswith(f"of the step rests on guesses{words}")


def test_a_what_if_has_the_interval_of_its_difference() -> None:
    """`whatif`: the difference lies in its interval, which is narrower than that of a step."""
    made = of("whatif", "llama1b-ddp4", "--set", "nvlink.bandwidth=2x")
    found = made["difference_interval"]
    assert isinstance(found, dict)
    assert isinstance(made["difference"], float)
    assert found["low"] < made["difference"] < found["high"] < 0


def test_each_of_several_what_ifs_has_the_interval_of_its_difference() -> None:
    """Faster links save time for sure, and links as fast as they are change nothing for sure."""
    changes = ("nvlink.bandwidth=2x", "nvlink.bandwidth=1x")
    against = (word for change in changes for word in ("--against", change))
    made = of("whatif", "llama1b-ddp4", *against)
    faster, same = made["variants"]  # type: ignore[misc]
    found, nothing = (
        each["comparison"]["difference_interval"] for each in (faster, same)
    )
    assert found["low"] < faster["comparison"]["difference"] < found["high"] < 0
    assert nothing["low"] == nothing["high"] == 0


def test_another_gpu_is_less_sure(plain: dict[str, object]) -> None:
    """A GPU whose times are another's scaled, on a host that nobody measured, has a wider interval and guesses."""
    other = of("run", "--set", "cluster.name=gh200-quad", "--set", "cluster.gpus=4")
    one, two = plain["uncertainty"], other["uncertainty"]
    assert isinstance(one, dict)
    assert isinstance(two, dict)
    assert two["spread"] > 2 * one["spread"]
    assert two["guessed"] > 0.5 > one["guessed"]


def test_explain_says_how_sure(tmp_path: Path) -> None:
    """`explain RESULT` names the interval and what makes it wide."""
    file = tmp_path / "result.json"
    file.write_text(CliRunner().invoke(main, ["run", "--json"]).stdout)
    told = CliRunner().invoke(main, ["explain", str(file)]).stdout
    assert "in 90% of the cases" in told
    assert "Most of that width: run to run" in told


def test_every_grade_has_a_width() -> None:
    """No family of kernels or communication lacks a width for a grade that it can have."""
    for family in ("gemm", "attention", "memory", "other", "lent"):
        assert {"measured", "fitted", "datasheet", "guess"} == set(widths()[family])
        assert (
            widths()[family]["measured"]
            <= widths()[family]["fitted"]
            <= widths()[family]["guess"]
        )
    assert isinstance(interval({}, 1.0), Uncertainty)


def test_hosts_that_differ_widen_what_waits_for_them(tmp_path: Path) -> None:
    """`host_spread` of a cluster counts for the host's seconds, and not where the scenario says how fast its host is."""
    small = [
        "--set",
        "training.micro_batch=1",
        "--set",
        "training.seq_len=128",
    ]  # so that the GPU waits for the host
    unsaid = of("run", *small)["uncertainty"]
    said = of("run", *small, "--set", "cluster.host_factor=1.35")["uncertainty"]
    assert isinstance(unsaid, dict)
    assert isinstance(said, dict)
    assert unsaid["spread"] > 1.5 * said["spread"]
    assert "speed of the host" in [part["constant"] for part in unsaid["parts"]]
    assert "speed of the host" not in [part["constant"] for part in said["parts"]]
