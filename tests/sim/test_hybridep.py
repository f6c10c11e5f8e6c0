"""HybridEP's kernels: laws of the published bandwidth within an NVLink domain."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.collectives import hybridep
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.graph.tokens import Tokens
from prestep.topologies import load_cluster

SIZE = 512e6


def exchange(fabric: Any, ranks: int, way: str, kernel: str = "hybridep") -> Any:
    tokens = Tokens(way, 4096, 14336.0, ranks, 1.0, 1, 16, kernel)
    gpus = fabric.gpus[:ranks]
    return plan_collective("all_to_all", SIZE, gpus, fabric, tokens=tokens)


@pytest.mark.parametrize("way", hybridep.WAYS)
def test_published_ranks_have_the_published_bandwidth(way: str) -> None:
    """On a rack of GB200, of as many ranks as were measured."""
    fabric = load_cluster("gb200-nvl64")
    table = hybridep.curve()
    for ranks, rate in zip(table["ranks"], table[way], strict=True):
        plan = exchange(fabric, ranks, way)
        assert plan.algo == "hybridep" and plan.channels == 16
        assert plan.rate_cap == pytest.approx(rate * 1e9)
        assert plan.evidence == "fitted"


@pytest.mark.parametrize("way", hybridep.WAYS)
def test_more_ranks_are_no_faster(way: str) -> None:
    """Beyond what was measured as fast as there, and a guess."""
    rates = [hybridep.bandwidth(ranks, way) for ranks in (2, 4, 8, 12, 32, 64, 72)]
    assert rates == sorted(rates, reverse=True)
    assert exchange(load_cluster("gb200-nvl64"), 64, way).evidence == "guess"


def test_links_bound_it() -> None:
    """No GPU's NVLinks carry more than they do."""
    fabric = load_cluster("gb200-nvl64")
    plan = exchange(fabric, 8, "dispatch")
    links = fabric.links.bandwidth[plan.links] / plan.usage
    assert plan.rate_cap <= links.min()


@pytest.mark.parametrize(
    ("cluster", "ranks"), [("rail-h100", 8), ("dgx-b200-superpod", 16)]
)
def test_what_nobody_measured_goes_as_an_all_to_all_of_nccl(
    cluster: str, ranks: int
) -> None:
    """On other GPUs, and over several NVLink domains."""
    fabric = load_cluster(cluster, hosts=2)
    own = exchange(fabric, ranks, "dispatch")
    nccl = plan_collective("all_to_all", SIZE, fabric.gpus[:ranks], fabric)
    assert (own.algo, own.rate_cap) == (nccl.algo, nccl.rate_cap)
