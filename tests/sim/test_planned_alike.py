"""Copies of a communicator that lie alike have the plans that each of them has by itself."""

from __future__ import annotations

import pytest

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.planning.plans import planned_once
from prestep.topologies import load_cluster


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("slow", [{}, {"nvlink[host2].bandwidth": "0.5x"}])
def test_a_moved_plan_is_the_own_plan(op: str, slow: dict[str, str]) -> None:
    """To the bit, on a cluster with storage; hosts with another bandwidth have plans of their own."""
    shared, own = (
        load_cluster("dgx-h100-superpod", hosts=6, overrides=slow) for _ in range(2)
    )
    hosts = list(own.gpus_by_host.values())
    inner = [tuple(gpus[:4]) for gpus in hosts]
    pairs = [(a[k], b[k]) for a, b in zip(hosts[::2], hosts[1::2], strict=True) for k in (0, 5)]  # fmt: skip
    made = 0

    def make(gpus: tuple[str, ...]) -> object:
        nonlocal made
        made += 1
        return plan_collective(op, 2.0**26, gpus, shared)

    for gpus in (*inner, *pairs):
        what = (op, 2.0**26)
        moved = planned_once(shared, what, [gpus], lambda gpus=gpus: make(gpus))  # type: ignore[misc,arg-type]
        alone = plan_collective(op, 2.0**26, gpus, own)
        assert moved.ranks == alone.ranks
        assert moved.links.tobytes() == alone.links.tobytes()
        assert moved.usage.tobytes() == alone.usage.tobytes()
        assert (moved.latency, moved.rate_cap) == (alone.latency, alone.rate_cap)
    assert made < len(inner) + len(pairs)
