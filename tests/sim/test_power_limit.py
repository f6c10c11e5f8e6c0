"""`gpu.power_limit` and `gpu.clock`: laws of the clock under a limit, and what a step makes of it."""

from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim import api
from prestep.sim.analysis.energy import HELD
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.costs.changed import ChangedGpu, Speed, changed
from prestep.sim.costs.power import Load, Meter
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel, named
from prestep.sim.planning.fleet import AT_ONCE

STEP = "llama1b-ddp4"
PRODUCT = Kernel("aten mm", (8192, 8192, 8192), layout="nt")
ADD = Kernel("aten add", (1 << 28,), bytes=6.0 * (1 << 28))
ATTENTION = named("attention_fwd", (2, 32, 8, 4096, 128))
LIMITS = st.floats(0.25, 2.0)
KERNELS = st.sampled_from([PRODUCT, ADD, ATTENTION])
HEAD = Kernel("aten mm", (256, 128256, 4096), layout="nt")  # memory bounds it in part
SIZES = st.sampled_from([64, 256, 1000, 4096, 28672])
ANY_KERNEL = st.one_of(
    *(
        KERNELS,
        st.just(
            Kernel("aten _fused_adamw_", (100, 1 << 26), layout="4", bytes=14.0 * 2**26)
        ),
    ),
    st.builds(
        lambda m, n, k, layout: Kernel("aten mm", (m, n, k), layout=layout),
        *(SIZES, SIZES, SIZES, st.sampled_from(["nt", "nn", "tn"])),
    ),
    st.builds(
        lambda kind, size: Kernel(kind, (1024 * size,)),
        *(st.sampled_from(["fused", "aten silu", "sum", "aten fill"]), SIZES),
    ),
)
CLOCKS = st.floats(0.4, 1.0)
GPUS = st.sampled_from(["h200", "h100", "a100", "b200"])


def load(name: str, kernel: Kernel, limit: float, clock: float = 1.0) -> Load:
    """A kernel on a GPU whose limit and clock are these shares of its model's."""
    gpu = changed(load_gpu(name), Speed(power_limit=limit, clock=clock))
    if not isinstance(gpu, ChangedGpu):
        return ChangedGpu(gpu, Speed()).load(kernel)
    return gpu.load(kernel)


@cache
def step(limit: str = "") -> Prediction:
    """The bundled step under a limit."""
    return api.simulate(STEP, {"gpu.power_limit": limit} if limit else {})


@given(name=GPUS, kernel=KERNELS, low=LIMITS, high=LIMITS)
@example(name="h200", kernel=ADD, low=1.0, high=2.0)
def test_a_lower_limit_is_never_faster(
    name: str, kernel: Kernel, low: float, high: float
) -> None:
    """The less a GPU may draw, the longer a kernel takes once it draws the limit, and the more it would draw over it."""
    low, high = sorted((low, high))
    less, more = load(name, kernel, low), load(name, kernel, high)
    assert less.slowest >= more.slowest * (1 - 1e-6) >= 1 - 1e-6
    assert less.drawn * low == pytest.approx(more.drawn * high)


@given(name=GPUS, kernel=KERNELS, limit=LIMITS)
def test_a_kernel_slows_only_where_it_would_draw_more(
    name: str, kernel: Kernel, limit: float
) -> None:
    """A limit above what a kernel draws leaves its time."""
    found = load(name, kernel, limit)
    assert (found.slowest == 1.0) or found.drawn > 1.0


@given(limit=st.floats(0.4, 0.9))
def test_memory_hardly_minds_a_lower_clock(limit: float) -> None:
    """What the HBM bounds hardly minds a limit that makes products much slower."""
    assert load("h200", ADD, limit).slowest < 1.06
    assert load("h200", PRODUCT, limit).slowest > 1.15


def seconds(name: str, kernel: Kernel, limit: float, clock: float) -> float:
    """What a kernel takes once nothing is left of what may be drawn beyond the limit."""
    gpu = ChangedGpu(load_gpu(name), Speed(power_limit=limit, clock=clock))
    told, meter = gpu.load(kernel), Meter(gpu.power or AT_ONCE, left=0.0)
    alone = gpu.duration(kernel) * gpu.sustained(kernel)
    return meter.run(0.0, alone, told)


@given(name=GPUS, kernel=ANY_KERNEL, limit=LIMITS, low=CLOCKS, high=CLOCKS)
@example(name="h100", kernel=HEAD, limit=0.8, low=0.8, high=1.0)
@example(name="h200", kernel=HEAD, limit=1.0, low=0.8, high=1.0)
def test_a_lower_clock_is_never_faster(
    name: str, kernel: Kernel, limit: float, low: float, high: float
) -> None:
    """Whatever bounds a kernel and whatever the limit: at a lower highest clock it takes as long or longer."""
    low, high = sorted((low, high))
    slow, fast = (seconds(name, kernel, limit, clock) for clock in (low, high))
    assert slow >= fast * (1 - 1e-6)


@given(limit=st.floats(0.5, 1.0), clock=CLOCKS)
def test_a_lower_clock_saves_no_more_than_what_is_lent(
    limit: float, clock: float
) -> None:
    """Power rises faster than the clock, so what may be drawn beyond the limit does more at a lower one: that is all."""
    high, low = (products("h200", limit, one) for one in (1.0, clock))
    power = ChangedGpu(load_gpu("h200"), Speed(power_limit=limit)).power
    assert power is not None
    assert low >= high - power.budget


def products(name: str, limit: float, clock: float, count: int = 500) -> float:
    """Seconds of so many products in a row, from a full budget on."""
    gpu = ChangedGpu(load_gpu(name), Speed(power_limit=limit, clock=clock))
    told, alone, now = gpu.load(PRODUCT), gpu.duration(PRODUCT), 0.0
    meter = Meter(gpu.power or AT_ONCE)
    for _ in range(count):
        now += meter.run(now, alone, told)
    return now


@pytest.mark.parametrize("clock", [0.95, 0.7])
def test_a_product_that_the_limit_slows_minds_a_lower_clock_less(clock: float) -> None:
    """A clock below the highest costs a product under the limit less than its share, and at most that."""
    gpu = changed(load_gpu("h200"), Speed(clock=clock))
    model = load_gpu("h200")
    assert isinstance(gpu, ChangedGpu) and model.power is not None
    before = model.duration(PRODUCT) * model.power.slowest
    after = gpu.duration(PRODUCT) * gpu.load(PRODUCT).slowest
    assert before <= after * (1 + 1e-3)
    assert after / before < 1.0 / clock


def test_less_power_takes_more_time_and_fewer_joules_down_to_a_point() -> None:
    """Seconds rise and watts fall with the limit; joules have a least below the limit of the GPU, at the wall a higher one."""
    limits = ["700 W", "550 W", "400 W", "300 W", "200 W"]
    found = [step(limit) for limit in limits]
    energies = [one.energy for one in found]
    assert all(energy is not None for energy in energies)
    times = [one.step_time for one in found]
    watts = [energy.gpu_power for energy in energies if energy]
    clocks = [energy.gpu_clock for energy in energies if energy]
    wall = [energy.step_energy for energy in energies if energy]
    joules = [energy.gpu_step_energy for energy in energies if energy]
    assert times == sorted(times) and times[0] == step().step_time
    assert watts == sorted(watts, reverse=True)
    assert clocks == sorted(clocks, reverse=True)
    assert min(joules) < 0.9 * joules[0] and min(joules) < joules[-1]
    assert wall.index(min(wall)) < joules.index(min(joules))
    assert min(wall) < 0.98 * wall[0] and min(wall) < 0.9 * wall[-1]
    for limit, drawn in zip((700, 550, 400, 300, 200), watts, strict=True):
        assert drawn <= HELD * limit * (1 + 1e-9)


def test_a_limit_that_nothing_reaches_changes_nothing() -> None:
    """More than the products draw is no faster than just that; less than they draw is slower."""
    assert step("1200 W").step_time == step("1500 W").step_time
    assert step("1500 W").step_time <= step().step_time < step("600 W").step_time


def test_a_step_that_waits_for_its_host_hardly_minds() -> None:
    """A GPU that waits most of the time draws less than a lower limit: the step takes as long."""
    waits = {"training.micro_batch": 1, "cluster.host_factor": 6}
    before = api.simulate(STEP, waits)
    after = api.simulate(STEP, {**waits, "gpu.power_limit": "550 W"})
    assert after.step_time == pytest.approx(before.step_time, rel=0.01)


def test_one_limited_gpu_slows_the_step_as_all_do() -> None:
    """Data parallel ranks wait for the one that may draw less; the others then draw less than their limit."""
    one = api.simulate(STEP, {"gpu[2].power_limit": "400 W"})
    every = step("400 W")
    assert one.step_time == pytest.approx(every.step_time, rel=0.03)
    assert one.energy is not None and every.energy is not None
    assert one.energy.gpu_power > every.energy.gpu_power


def test_a_limit_below_what_a_waiting_gpu_draws_is_refused() -> None:
    """The message says how much is drawn with nothing to do."""
    with pytest.raises(InputError, match="with nothing to do"):
        api.simulate(STEP, {"gpu.power_limit": "100 W"})


def test_the_command_shows_the_clock() -> None:
    """`run --set gpu.power_limit=500W --energy` says the clock, and JSON has it."""
    arguments = ["run", STEP, "--set", "gpu.power_limit=500W"]
    shown = CliRunner().invoke(cli.main, [*arguments, "--energy"])
    assert shown.exit_code == 0, shown.output
    assert "of 500 W" in shown.output and "MHz" in shown.output
    table = json.loads(CliRunner().invoke(cli.main, [*arguments, "--json"]).output)
    assert table["energy"]["gpu_limit"] == 500
    assert 0.3 < table["energy"]["gpu_clock"] < 0.9


def test_a_clock_that_is_hardly_lower_changes_hardly_anything() -> None:
    """What kernels draw is counted one by one at another clock, and by their mean at the model's: both agree there."""
    usual = api.simulate(STEP).step_time
    for clock in (0.9999999, 0.999):
        lower = api.simulate(STEP, {"gpu.clock": f"{clock}x"}).step_time
        assert usual * (1 - 1e-8) <= lower <= usual * (1 + 3 * (1 - clock))
