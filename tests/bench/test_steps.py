"""Steps of training as workloads: what is counted may not grow; `make bench` times them."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bench import steps


@pytest.mark.parametrize("name", ["G5-512", "G5-4096"])
def test_a_peers_training_step(benchmark: Any, name: str) -> None:
    """As many operations whatever the ranks; the time is at most 6 % above the peer's, which knows no congestion."""
    time, counts = benchmark.pedantic(steps.CASES[name].run, rounds=1)
    assert counts["operations"] == 288 and counts["events"] <= 1670
    assert time == pytest.approx(steps.CASES["G5-512"].predicted, rel=0.06)


def test_cost_grows_with_distinct_work(benchmark: Any) -> None:
    """Eight times as many GPUs in data-parallel replicas are not one operation more: their buckets may be larger."""
    _, few = steps.step(steps.curve_point(512))
    _, many = benchmark.pedantic(lambda: steps.step(steps.curve_point(4096)), rounds=1)
    assert many["programs"] == few["programs"] == 8
    assert (
        many["operations"] <= few["operations"]
        and many["events"] <= 1.2 * few["events"]
    )
    # 7,928 and 55, of which ten came with buckets that fill from the chunk's end: there are more sizes of them.
    # There were 676 solves before rates were remembered, and 8,504 events while ends of transfers had their own.
    # 8,129 since a bucket is reduced where it fills, within a layer.
    assert few["events"] <= 8_200 and few["solves"] <= 60


def test_one_slow_gpu_is_one_more_replica(benchmark: Any) -> None:
    """Of 1,024 GPUs two or three kinds of replicas are simulated, not 16."""
    _, counts = benchmark.pedantic(steps.slow_and_degraded, rounds=1)
    assert counts["programs"] <= 3 * 8 and counts["events"] <= 17_000


def test_the_engines_own_cost(benchmark: Any) -> None:
    """Two events for a kernel, and a few for a stream."""
    _, counts = benchmark.pedantic(lambda: steps.streams(100, 50), rounds=1)
    assert counts["events"] <= 2.1 * counts["operations"]
