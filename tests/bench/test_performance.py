"""Workloads of other simulators: what is counted may not grow; `make bench` times them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lab.bench import peers
from prestep.sim.collectives.planner import plan_collective
from prestep.topologies import load_cluster
from prestep.topologies.routes.ports import HostPorts

# Messages that the peer plays, and how far our prediction may lie from its own.
MESSAGES = {
    "G1": (2 * 511 * 512, 0.05),
    "G2": (2 * 4095 * 4096, 0.05),
    "G4-512": (512 * 511, 0.01),
    "G8-128": (30 * 128, 0.1),
    "G8-512": (126 * 512, 0.1),
    "G8-128-large": (30 * 128, 0.1),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_workload_of_a_peer(benchmark: Any, name: str) -> None:
    """A handful of events whatever the ranks, and the time is the peer's within what the page says."""
    messages, near = MESSAGES[name]
    time, counts = benchmark.pedantic(peers.CASES[name].run, rounds=1)
    assert counts["messages"] == messages and counts["events"] <= 100
    assert time == pytest.approx(peers.CASES[name].predicted, rel=near)


def test_a_permutation(benchmark: Any) -> None:
    """Flows that end together are one solution: far fewer than flows."""
    time, counts = benchmark.pedantic(peers.permutation, rounds=1)
    assert counts["solves"] <= 80
    assert 1 <= counts["median slowdown"] <= counts["worst slowdown"]
    alone = 2e6 / 12.5e9 + 6 * 1e-6  # the last to end crosses three tiers
    assert time == pytest.approx(counts["worst slowdown"] * alone)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_a_collective_of_4096_ranks(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    """No more pairs are looked at than a few for each rank, and routes are asked for within one host alone."""
    seen: list[int] = []
    ports = HostPorts.ports

    def counted(
        host: HostPorts, first: Any, second: Any, src: Any, dst: Any, nth: int = 0
    ) -> Any:
        seen.append(len(src))
        return ports(host, first, second, src, dst, nth)

    monkeypatch.setattr(HostPorts, "ports", counted)
    fabric = load_cluster("rail-h100", 512)
    plan = benchmark.pedantic(
        lambda: plan_collective(op, 2.0**28, fabric.gpus, fabric), rounds=1
    )
    assert sum(seen) <= 6 * 4096 and len(fabric._router.spreads) <= 64
    assert len(plan.links) == 59_392 and np.isfinite(
        plan.duration(fabric.links.bandwidth)
    )
