"""The power limit: laws of the meter, and what it does to a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.full_clock import TraceMeter, at_full_clock
from prestep.sim.costs.gpu import load
from prestep.sim.costs.power import Load, Meter, Power
from prestep.sim.engine.engine import execute
from prestep.sim.engine.execution import Limited
from prestep.sim.graph.kernel import Kernel
from prestep.validation.formats.kineto_kernels import Call
from tests.sim.graphs import US, Op, graph, timed

POWER = Power(budget=0.01, product=1.4, exponent=2.0, other=0.7, idle=0.2, depth=0.02)
LOW = 1.5
PRODUCT, OTHER = POWER.load(POWER.product), Load(POWER.other)
KERNELS = st.lists(
    st.tuples(
        st.sampled_from(["product", "other"]),
        st.floats(0.0, 5e-3),
        st.floats(1e-6, 5e-3),
    ),
    max_size=60,
)


@given(KERNELS)
def test_products_take_their_burst_or_longer_and_the_budget_is_never_more_than_all(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Whatever runs, a product takes 1 to `slowest` times its time; but for the part in which the clock falls."""
    meter, now = Meter(POWER), 0.0
    for kind, pause, duration in kernels:
        now += pause
        load = PRODUCT if kind == "product" else OTHER
        time = meter.run(now, duration, load)
        assert duration * (1 - 1e-9) <= time <= duration * load.slowest * 1.07
        assert POWER.spent - 2e-3 <= meter.left <= POWER.budget
        now += time


def test_products_in_a_row_slow_down_once_the_budget_is_spent() -> None:
    """A budget of 10 ms pays 25 ms of products at 1.4 times the limit; in the end they take sqrt(1.2 / 0.8) times as long.

    What is drawn beyond the idle power goes with the square of the clock.
    """
    meter, now, times = Meter(POWER), 0.0, []
    for _ in range(200):
        times.append(meter.run(now, 1e-3, PRODUCT))
        now += times[-1]
    assert times[:24] == pytest.approx([1e-3] * 24)
    assert times[-24:] == pytest.approx([1e-3 * 1.5**0.5] * 24, rel=1e-3)
    assert meter.left == pytest.approx(POWER.spent, rel=1e-2)


def test_a_kernel_of_a_day_is_counted_at_once() -> None:
    """It takes as many times longer as one of minutes, whose clock has settled long before its end."""
    load = POWER.load(1.4)
    minutes, day = (Meter(POWER).run(0.0, s, load) / s for s in (600.0, 86_400.0))
    assert day == pytest.approx(minutes, rel=1e-4)


@given(
    begun=st.floats(0.0, 1e12),
    before=st.floats(0.0, 0.1),
    duration=st.floats(1e-3, 1e4),
    drawn=st.floats(0.5, 2.0),
)
def test_a_kernel_takes_as_long_whenever_it_begins(
    begun: float, before: float, duration: float, drawn: float
) -> None:
    """After years moments are counted in coarse steps, in which the clock never seemed to settle."""
    times = []
    for now in (0.0, begun):
        meter = Meter(POWER, start=now)
        meter.run(now, before, PRODUCT)
        times.append(meter.run(meter.until, duration, POWER.load(drawn)))
    coarse = np.spacing(begun) / POWER.budget
    assert times[1] == pytest.approx(times[0], rel=1e-9 + coarse)


@given(shares=st.tuples(*[st.floats(0.5, 5.0)] * 3))
def test_all_kernels_of_a_loop_run_at_one_clock_and_draw_the_limit(
    shares: tuple[float, float, float],
) -> None:
    """Attention that draws little runs at the clock that products leave, and leaves them some of its own."""
    power = replace(POWER, in_16_bits=1.1)
    loads = power.load(1.4, own=1.1), power.load(1.05, 0.9), Load(0.7)
    meter, now, ratios, energy, counted = Meter(power), 0.0, [1.0] * 3, 0.0, 0.0
    for turn in range(12_000):
        for at, (one, share) in enumerate(zip(loads, shares, strict=True)):
            time = meter.run(now, share * 1e-4, one)
            now, ratios[at] = now + time, time / (share * 1e-4)
            if turn >= 11_000:
                behind = ratios[at] ** (1 / one.follows) if one.follows else 1.0
                drawn = 0.2 + (one.drawn - 0.2) * behind**-one.falls
                energy, counted = energy + drawn * time, counted + time
    if meter.left > 0.0:  # such a loop never reaches the limit
        return
    assert energy / counted == pytest.approx(1.0, abs=0.01)
    clock = ratios[1] ** (1 / 0.9)
    assert max(1.0, clock / 1.1) == pytest.approx(ratios[0], rel=0.01)
    assert ratios[2] == 1.0


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
    assert idle.run(0.02, 1e-3, PRODUCT) == pytest.approx(1e-3)
    other = Meter(POWER, left=0.0)
    other.run(0.0, 0.02, OTHER)
    assert other.left == pytest.approx(0.006)


@given(KERNELS)
def test_kernels_counted_one_by_one_fill_the_budget_as_their_mean_does(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Also beside each other: what two kernels leave of the limit at one moment is counted once."""
    mean, own, now = Meter(POWER), Meter(POWER), 0.0
    for _, pause, duration in kernels:
        now += min(pause, 1e-3)
        mean.run(now, duration, OTHER)
        assert own.run(now, duration, Load(POWER.other)) == duration
        assert own.left == mean.left <= POWER.budget
    apart = Meter(POWER, left=0.0)
    for begin in (0.0, 0.004):
        apart.run(begin, 0.006, OTHER)
    assert apart.left == pytest.approx(0.010 * (1.0 - POWER.other))


@given(KERNELS)
def test_the_time_at_full_clock_undoes_what_the_meter_did(
    kernels: list[tuple[str, float, float]],
) -> None:
    """Calibration takes out of a trace exactly what the simulator puts into a step."""
    forth, back, now = Meter(POWER), TraceMeter(POWER), 0.0
    for kind, pause, duration in kernels:
        now += pause
        load = PRODUCT if kind == "product" else OTHER
        time = forth.run(now, duration, load)
        share = back.free_share(now, time, load)
        assert time * share == pytest.approx(duration, rel=1e-2)
        assert forth.left == pytest.approx(back.left, abs=1e-12)
        now += time


def test_power_bounds_products_and_nothing_else() -> None:
    """100 us of a product take sqrt(1.2 / 0.8) times as long, those of another kernel do not."""
    power = replace(POWER, budget=0.0, depth=0.0)
    step = timed(graph([[Op(work=100.0)]]))
    limits = [Limited(power, (load,)) for load in (PRODUCT, OTHER)]
    ends = [execute(replace(step, limit=limit)).end[0][0] for limit in limits]
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
    assert done[59].duration == pytest.approx(1e-3 / POWER.slowest, rel=0.02)
    assert [c.duration for c in done[60:]] == [1e-5, 1e-3]
    assert at_full_clock(calls, None) == calls


def test_only_products_that_fill_the_gpu_are_hot() -> None:
    """Additions and small products do not draw beyond the limit; products in fp8 do, at a lower clock in a burst."""
    gpu = load("h200")
    large = Kernel("aten mm", (4096, 4096, 4096), layout="nt")
    assert gpu.beyond_limit(large)
    assert not gpu.beyond_limit(Kernel("aten add", (1 << 26,), bytes=6.0 * (1 << 26)))
    assert not gpu.beyond_limit(replace(large, shape=(64, 64, 64)))
    narrow = gpu.load(replace(large, dtype="fp8"))
    assert narrow.drawn == gpu.load(large).drawn and narrow.own > gpu.load(large).own


def test_a_gpu_lends_its_limit_with_its_times() -> None:
    """H100 and H800 take the H200's times at the highest clock, so its limit too; the A100 has products of its own."""
    assert load("h800").power == load("h100").power == load("h200").power
    assert load("a100").power is None
