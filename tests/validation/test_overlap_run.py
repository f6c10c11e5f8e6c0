"""Kernels and collectives side by side, run by the engine: laws, and the constants' own evidence."""

from __future__ import annotations

import pytest

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.costs.interference import BUNDLED
from prestep.sim.graph.kernel import Kernel
from prestep.topologies import load_cluster
from prestep.validation.sets.overlap_run import queues, side_by_side

SMS = 132
PRODUCT = Kernel("aten mm", (4096, 4096, 4096), layout="nn")
MIB = 2**20


def beside(
    size: int, compute: float = 205e-6, ranks: int = 4
) -> tuple[float, float, float]:
    """(kernel, collective, collective alone) of an all-reduce beside a product."""
    fabric = load_cluster("h200-host-4")
    plan = plan_collective("all_reduce", size, list(fabric.gpus)[:ranks], fabric)
    alone = plan.duration(fabric.links.bandwidth)
    return (
        *side_by_side(PRODUCT, compute, alone, plan, fabric.links.bandwidth, "h200"),
        alone,
    )


@pytest.mark.parametrize("size", [4 * MIB, 32 * MIB, 256 * MIB])
def test_neither_side_is_faster_than_alone(size: int) -> None:
    """Sharing a GPU costs both sides, and a kernel no more than its slowdown and the gap between kernels."""
    kernel, collective, alone = beside(size)
    worst = BUNDLED.slowdown(PRODUCT, 24, SMS, 205e-6)
    assert 205e-6 * 0.97 <= kernel <= 205e-6 * worst * 1.03
    assert collective > alone


def test_a_collective_waits_for_the_end_of_a_long_kernel() -> None:
    """One persistent product takes every SM, so of short collectives one runs per product, however long that is."""
    short, long = (beside(4 * MIB, compute)[1] for compute in (205e-6, 1e-3))
    assert short < long < 1e-3


def test_what_is_queued_is_what_the_harness_queues() -> None:
    """20 ms of kernels beside 60 ms of collectives, then 60 ms and eight kernels beside 20 ms of collectives."""
    first, second = queues(1e-3, 100e-6)
    assert (first.kernels, first.collectives) == (20, 600)
    assert (second.kernels, second.collectives) == (68, 200)


def test_a_product_held_down_by_power_loses_less() -> None:
    """SMs taken from it free power: at 670 Tflop/s alone it loses less than at 795, at 500 as much again."""
    flops = 2.0 * 4096**3
    free, held, slow = (
        BUNDLED.slowdown(PRODUCT, 24, SMS, flops / rate)
        for rate in (795e12, 670e12, 500e12)
    )
    assert 1.0 <= held < free == slow == BUNDLED.slowdown(PRODUCT, 24, SMS)
    assert held * flops / 670e12 == pytest.approx(free * flops / 795e12)


def test_a_product_is_never_faster_beside_communication() -> None:
    """However few channels and however low the clock alone, the factor is at least one."""
    for channels in (0, 1, 4, 24, 131):
        for rate in (600e12, 700e12, 790e12, 900e12):
            assert BUNDLED.slowdown(PRODUCT, channels, SMS, 2.0 * 4096**3 / rate) >= 1.0
