"""What a step draws and costs: laws of watts, joules and prices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim import api
from prestep.sim.analysis.cost import Prices, cost_of
from prestep.sim.analysis.energy import (
    HELD,
    TRAFFIC,
    Energy,
    bound_note,
    factors,
    limit_note,
)
from prestep.sim.analysis.kernels import KernelUse
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.costs.changed import Speed, changed
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.gpu_files import names
from prestep.sim.graph.kernel import Kernel
from tests.sample import together

SCENARIO = "llama1b-ddp4"
SHARE = st.floats(0.1, 10)
DRAW = Draw(120.0, 370.0, 1e-11, {"bf16": 6e-13, "attention": 7e-13})


@pytest.fixture(scope="module")
def step() -> Prediction:
    return api.simulate(SCENARIO)


def test_a_gpu_draws_between_idle_and_its_limit(step: Prediction) -> None:
    """The mean lies between a waiting GPU's watts and the share of the limit at which it is held."""
    gpu, energy = load_gpu("h200"), step.energy
    assert energy is not None and gpu.draw is not None
    assert gpu.draw.idle < energy.gpu_power <= HELD * energy.gpu_limit


def test_energy_is_power_times_time(step: Prediction) -> None:
    """Joules of a step are its watts over its seconds; those of a token are a token's share."""
    energy = step.energy
    assert energy is not None
    tokens = step.tokens_per_second_per_gpu * 4 * step.step_time
    assert energy.step_energy == pytest.approx(energy.total_power * step.step_time)
    assert energy.energy_per_token * tokens == pytest.approx(energy.step_energy)


def test_a_step_that_waits_longer_draws_less() -> None:
    """A host five times as slow lengthens the step; its GPUs draw less on the mean, and more joules in all."""
    quick = api.simulate(SCENARIO, {"training.micro_batch": 1}).energy
    slow = api.simulate(
        SCENARIO, {"training.micro_batch": 1, "cluster.host_factor": 5}
    ).energy
    assert quick is not None and slow is not None
    assert slow.gpu_power < quick.gpu_power
    assert slow.step_energy > quick.step_energy


def test_all_is_the_sum_of_hosts_and_switches() -> None:
    """A job over two hosts draws what two hosts and its share of the switches draw."""
    changes = {
        "cluster.name": "dgx-h100-superpod",
        "cluster.gpus": 16,
        "parallel.dp": 16,
        "training.global_batch": 32,
    }
    energy = api.simulate(SCENARIO, changes).energy
    assert energy is not None and energy.network_power > 0
    whole = 2 * energy.host_power + energy.network_power
    assert energy.total_power == pytest.approx(whole)


def test_communication_draws_with_what_it_moves() -> None:
    """One GPU has nothing to send; four send gradients, whose joules twice the samples of a step leave as they are."""
    alone = api.simulate(
        "mlp-ddp4", {"parallel.dp": 1, "cluster.gpus": 1, "training.global_batch": 256}
    )
    few = api.simulate(SCENARIO, {"training.micro_batch": 1}).energy
    many = api.simulate(
        SCENARIO, {"training.micro_batch": 2, "training.global_batch": 8}
    ).energy
    assert alone.energy is not None and alone.energy.communication_power == 0
    assert few is not None and many is not None
    joules = [
        one.communication_power * one.gpu_step_energy / one.gpu_power
        for one in (few, many)
    ]
    assert joules[0] > 0 and joules[1] == pytest.approx(joules[0], rel=0.02)


def test_gradients_are_moved_at_a_constant_each() -> None:
    """A ring of four sends three halves of the gradients' bytes for each GPU, each moved three times through HBM."""
    result = api.simulate(SCENARIO)
    gpu, energy = load_gpu("h200"), result.energy
    assert energy is not None and gpu.draw is not None
    sent = 1.5 * 1_498_482_688 * 2
    expected = TRAFFIC * gpu.draw.moved * sent / result.step_time
    assert energy.communication_power == pytest.approx(expected, rel=0.15)


@given(limit=SHARE, speed=SHARE, bandwidth=SHARE)
def test_a_lent_draw_is_the_same_share_of_the_limit(
    limit: float, speed: float, bandwidth: float
) -> None:
    """At the same shares of its peaks a GPU draws the same share of its limit as the one that lends its figures."""
    lent = DRAW.scaled(limit, {"bf16": speed}, bandwidth)
    own = DRAW.kernel(1.0, 5e14, 2e12, "bf16")
    theirs = lent.kernel(1.0, 5e14 * speed, 2e12 * bandwidth, "bf16")
    assert theirs == pytest.approx(limit * own)


@pytest.mark.parametrize("name", ["h200", "h100", "b200"])
def test_a_quicker_gpu_takes_the_same_joules_for_its_work(name: str) -> None:
    """A what-if on the speed of a GPU leaves what a flop and a byte take, lent figures or its own; a lower clock less.

    What a byte of HBM takes does not follow the SMs' clock.
    """
    model = load_gpu(name)
    assert changed(model, Speed(flops=2.0, hbm_bandwidth=3.0)).draw == model.draw
    slower = changed(model, Speed(clock=0.5)).draw
    assert slower is not None and model.draw is not None
    assert slower.byte == model.draw.byte and slower.idle == model.draw.idle
    assert slower.active < 0.5 * model.draw.active
    assert all(joules < model.draw.flop[kind] for kind, joules in slower.flop.items())


@together("name", names())
def test_every_gpu_says_what_it_draws(name: str) -> None:
    """Each bundled GPU has a limit above its idle power, and a figure for every number format that it computes in."""
    gpu = load_gpu(name)
    assert gpu.power_limit is not None and gpu.draw is not None
    assert gpu.draw.idle < gpu.power_limit
    assert {*gpu.peak} <= {*gpu.draw.flop}


@given(price=SHARE, energy=SHARE, pue=st.floats(1, 3))
def test_costs_are_linear_in_prices(
    step: Prediction, price: float, energy: float, pue: float
) -> None:
    """Twice the price is twice the cost, and the data centre's share is one of energy alone."""
    one = cost_of(step, Prices(price, energy, pue))
    double = cost_of(step, Prices(2 * price, 2 * energy, pue))
    assert double.step == pytest.approx(2 * one.step)
    bare = cost_of(step, Prices(price, energy))
    assert one.gpus == bare.gpus
    assert one.energy is not None and bare.energy is not None
    assert one.energy == pytest.approx(pue * bare.energy)


def test_a_gpu_of_unknown_power_has_no_energy(step: Prediction) -> None:
    """Where nobody says what a GPU draws, nothing is made up: no watts, and the cost of its hours alone."""
    unknown = replace(step, energy=None)
    cost = cost_of(unknown, Prices(2.0, 0.1))
    assert cost.energy is None and cost.kilowatt_hours is None
    assert cost.step == cost.gpus


def test_the_command_shows_power_and_cost() -> None:
    """`--price-per-gpu-hour` and `--price-per-kwh` print watts, joules and what a step and a million tokens cost."""
    options = ["--price-per-gpu-hour", "2", "--price-per-kwh", "0.1", "--pue", "1.3"]
    result = CliRunner().invoke(cli.main, ["run", SCENARIO, *options])
    assert result.exit_code == 0
    assert "Power and cost" in result.output
    assert "a million tokens cost" in result.output
    shown = CliRunner().invoke(cli.main, ["run", SCENARIO, "--json", *options])
    table = json.loads(shown.output)
    assert table["cost"]["step"] == pytest.approx(
        table["cost"]["gpus"] + table["cost"]["energy"]
    )
    assert table["energy"]["gpu_power"] > 0


@pytest.mark.parametrize(
    "option", ["--price-per-kwh=inf", "--price-per-gpu-hour=-1", "--pue=0.5"]
)
def test_impossible_prices_are_refused(option: str) -> None:
    """A price is finite and above 0, a PUE at least 1."""
    result = CliRunner().invoke(cli.main, ["run", SCENARIO, option])
    assert result.exit_code == 2
    assert option.split("=")[0] in result.output


@pytest.mark.parametrize(
    ("change", "speedup", "limited", "told"),
    [
        ("gpu.clock=0.95x", 0.99, (True, True), "costs less"),
        ("gpu[3].clock=90%", 0.99, (True, True), "88 % of the highest"),
        ("gpu.clock=0.9x", 0.93, (True, True), "memory, links and the host do not"),
        ("gpu.clock=1.05x", 1.04, (True, True), "draws no more power"),
        ("gpu.power_limit=1.2x", 1.05, (True, False), "holds nothing back"),
        ("gpu.power_limit=2x", 1.0, (True, False), "what more power adds is unknown"),
        ("gpu.power_limit=1.2x", 1.0, (False, False), "does not hold"),
        ("gpu.clock=0.95x", 0.95, (False, False), ""),
        ("gpu.power_limit=0.8x", 0.9, (True, True), ""),
        ("gpu.flops=2x", 1.5, (True, True), ""),
    ],
)
def test_a_limit_explains_what_a_clock_does(
    change: str, speedup: float, limited: tuple[bool, bool], told: str
) -> None:
    """Where the step goes another way than one expects, and only there."""
    watts = (700.0, 700.0, True, 0.88, *[1.0] * 8, "fitted")
    before, after = (replace(Energy(*watts), limited=held) for held in limited)
    note = limit_note(before, after, factors([change]), speedup)
    assert (told in note) if told else not note


@pytest.mark.parametrize(
    ("change", "speedup", "told"),
    [
        ("gpu.hbm_bandwidth=2x", 1.1, "75 % of the kernels' time waits for arithmetic"),
        ("gpu.flops=2x", 1.1, "25 % of the kernels' time waits for HBM"),
        ("gpu.hbm_bandwidth=2x", 1.6, ""),
        ("gpu.hbm_bandwidth=0.5x", 0.9, "75 % of the kernels' time waits"),
        ("nvlink.bandwidth=2x", 1.0, ""),
    ],
)
def test_what_does_not_bound_a_step_is_named(
    change: str, speedup: float, told: str
) -> None:
    """Three seconds of a product and one of a copy: the GPU waits for arithmetic in three of four."""
    product, copy = Kernel("aten mm", (8192, 8192, 8192), "bf16"), Kernel("copy", (2**30,), "bf16")  # fmt: skip
    uses = [
        KernelUse(kernel, 1.0, time, 1.0, 1.0, time, "measured")
        for kernel, time in ((product, 3.0), (copy, 1.0))
    ]
    note = bound_note(factors([change]), uses, load_gpu("h100"), speedup)
    assert (told in note) if told else not note
