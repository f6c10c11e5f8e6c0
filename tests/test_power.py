"""The power limit: laws of the meter, and what it does to a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.full_clock import TraceMeter, at_full_clock
from prestep.sim.costs.gpu import load
from prestep.sim.costs.power import Meter, Power
from prestep.sim.engine.engine import execute
from prestep.sim.graph.kernel import Kernel
from prestep.validation.formats.kineto_kernels import Call
from tests.sim.graphs import US, Op, graph, timed

POWER = Power(budget=0.01, product=1.4, exponent=2.0, other=0.7, idle=0.2)
LOW = 1.5
KERNELS = st.lists(
    st.tuples(
        st.sampled_from(["product", "other"]),
        st.floats(0.0, 5e-3),
        st.floats(1e-6, 5e-3),
    ),
    max_size=60,
)


@given(KERNELS)
def test_the_budget_stays_between_nothing_and_all_and_products_between_full_and_lowest_clock(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Whatever runs, the budget never leaves [0, budget], and a product takes 1 to `slowest` times its time."""
    meter, now = Meter(POWER), 0.0
    for kind, pause, duration in kernels:
        now += pause
        time = duration
        if kind == "product":
            time = meter.product(now, duration)
            assert (
                duration * (1 - 1e-9) <= time <= duration * POWER.slowest * (1 + 1e-9)
            )
        else:
            meter.other(now, duration)
        assert 0.0 <= meter.left <= POWER.budget
        now += time


def test_products_in_a_row_slow_down_once_the_budget_is_spent() -> None:
    """A budget of 10 ms pays 25 ms of products at 1.4 times the limit; all later ones sqrt(1.2 / 0.8) times as long.

    What is drawn beyond the idle power goes with the square of the clock.
    """
    meter, now, times = Meter(POWER), 0.0, []
    for _ in range(50):
        times.append(meter.product(now, 1e-3))
        now += times[-1]
    assert times[:24] == pytest.approx([1e-3] * 24)
    assert times[26:] == pytest.approx([1e-3 * 1.5**0.5] * 24)


@given(limit=st.floats(0.4, 3), clock=st.floats(0.3, 1))
def test_another_limit_leaves_the_watts_of_a_gpu(limit: float, clock: float) -> None:
    """Under another limit a GPU draws the same watts; a lower limit or a lower clock never makes products faster."""
    other, full = POWER.under(limit, clock, LOW), POWER.under(limit, 1.0, LOW)
    assert other.idle * limit == pytest.approx(POWER.idle)
    assert other.budget * limit == pytest.approx(POWER.budget)
    assert full.product * limit == pytest.approx(POWER.product)
    assert other.product * limit <= POWER.product * (1 + 1e-9)
    lower = POWER.under(0.9 * limit, clock, LOW)
    assert lower.slowest >= other.slowest * (1 - 1e-9)
    assert other.slowest / clock >= full.slowest * (1 - 1e-9)


def test_the_own_limit_changes_nothing() -> None:
    """A limit of once the own at the highest clock is the GPU as it is."""
    assert POWER.under(1.0, 1.0, LOW).slowest == pytest.approx(POWER.slowest)
    assert POWER.under(1.0, 1.0, LOW).product == POWER.product


def test_voltage_falls_less_at_low_clocks() -> None:
    """Below the clock of the limit power follows the clock less: a lower limit costs more time than above it."""
    assert POWER.under(0.6, 1.0, LOW).slowest > POWER.under(0.6, 1.0, 2.0).slowest


def test_a_pause_and_lighter_kernels_fill_the_budget_again() -> None:
    """20 ms of idle GPU at a fifth of the limit fill an empty budget of 10 ms; kernels at 0.7 need 33 ms."""
    idle = Meter(POWER, left=0.0)
    assert idle.product(0.02, 1e-3) == pytest.approx(1e-3)
    other = Meter(POWER, left=0.0)
    other.other(0.0, 0.02)
    assert other.left == pytest.approx(0.006)


@given(KERNELS)
def test_kernels_counted_one_by_one_fill_the_budget_as_their_mean_does(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Also beside each other: what two kernels leave of the limit at one moment is counted once."""
    mean, own, now = Meter(POWER), Meter(POWER), 0.0
    for _, pause, duration in kernels:
        now += min(pause, 1e-3)
        mean.other(now, duration)
        assert own.run(now, duration, POWER.other, 1.0) == duration
        assert own.left == mean.left <= POWER.budget
    apart = Meter(POWER, left=0.0)
    for begin in (0.0, 0.004):
        apart.run(begin, 0.006, POWER.other, 1.0)
    assert apart.left == pytest.approx(0.010 * (1.0 - POWER.other))


@given(KERNELS)
def test_the_time_at_full_clock_undoes_what_the_meter_did(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Calibration takes out of a trace exactly what the simulator puts into a step."""
    forth, back, now = Meter(POWER), TraceMeter(POWER), 0.0
    for kind, pause, duration in kernels:
        now += pause
        if kind == "product":
            time = forth.product(now, duration)
            assert time * back.free_share(now, time) == pytest.approx(duration)
        else:
            time = duration
            forth.other(now, duration)
            back.other(now, duration)
        assert forth.left == pytest.approx(back.left, abs=1e-12)
        now += time


def test_power_bounds_products_and_nothing_else() -> None:
    """100 us of a product take sqrt(1.2 / 0.8) times as long, those of another kernel do not."""
    step = timed(graph([[Op(work=100.0)]]), power=replace(POWER, budget=0.0))
    hot = (frozenset({0}), frozenset[int]())
    ends = [execute(replace(step, hot=which)).end[0][0] for which in hot]
    longer = [float(end[0]) - 102 * US for end in ends]
    assert longer == pytest.approx([100 * US * (1.5**0.5 - 1), 0.0], abs=1e-12)


def test_calibration_shortens_long_dense_runs_of_products_and_nothing_else() -> None:
    """Of 60 ms of products the first 25 ms stay, the others are shortened; a short product and other kernels stay."""
    product, add = (
        Kernel("aten mm", (4096, 4096, 4096), layout="nt"),
        Kernel("aten add", (1 << 20,), bytes=6.0 * (1 << 20)),
    )
    calls = [Call(product, 1e-3, False, 1, i * 1e-3) for i in range(60)]
    calls += [Call(product, 1e-5, False, 1, 0.061), Call(add, 1e-3, False, 1, 0.062)]
    done = at_full_clock(calls, POWER)
    assert [c.duration for c in done[:24]] == [1e-3] * 24
    assert done[59].duration == pytest.approx(1e-3 / POWER.slowest)
    assert [c.duration for c in done[60:]] == [1e-5, 1e-3]
    assert at_full_clock(calls, None) == calls


def test_only_products_of_sixteen_bits_that_fill_the_gpu_are_hot() -> None:
    """Additions, small products and fp8, whose factor of sustained load has it, do not draw beyond the limit."""
    gpu = load("h200")
    large = Kernel("aten mm", (4096, 4096, 4096), layout="nt")
    assert gpu.hot(large)
    assert not gpu.hot(Kernel("aten add", (1 << 26,), bytes=6.0 * (1 << 26)))
    assert not gpu.hot(replace(large, shape=(64, 64, 64)))
    assert not gpu.hot(replace(large, dtype="fp8"))


def test_a_gpu_lends_its_limit_with_its_times() -> None:
    """The H100 takes the H200's times at the highest clock, so its limit too; the A100 has products of its own."""
    assert load("h100").power == load("h200").power
    assert load("a100").power is None
