"""HybridEP's kernels: laws of the published bandwidth within an NVLink domain."""

from __future__ import annotations

from math import comb
from typing import Any

import pytest

from prestep.sim.analysis.memory import outside
from prestep.sim.collectives import hybridep
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.graph.opgraph import Tokens
from prestep.sim.predict import plan
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
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
        sent = exchange(fabric, ranks, way)
        assert sent.algo == "hybridep" and sent.channels == 16
        assert sent.rate_cap == pytest.approx(rate * 1e9)
        assert sent.evidence == "fitted"


def reached(ranks: int, experts: int, chosen: int) -> float:
    """Ranks with an expert that a token chose, each as likely."""
    others = comb(experts - experts // ranks, chosen) / comb(experts, chosen)
    return ranks * (1 - others)


@pytest.mark.parametrize(
    ("way", "experts", "chosen", "measured"),
    [
        ("combine", 256, 36, 876.7e-6),
        ("combine", 256, 8, 577.4e-6),
        ("combine", 128, 8, 581.5e-6),
        ("dispatch", 256, 36, 95.8e-6),
    ],
)
def test_small_tokens_take_what_was_measured(
    way: str, experts: int, chosen: int, measured: float
) -> None:
    """Of a kilobyte, between 8 GPUs of a B200: copies that come back wait for each read, others for nothing."""
    fabric = load_cluster("dgx-b200-superpod", hosts=1)
    copies = reached(8, experts, chosen)
    tokens = Tokens(way, 8192, 1024.0, copies, 1.0, 1, 32, "hybridep")
    size = 8192 * copies * 1024.0
    sent = plan_collective("all_to_all", size, fabric.gpus, fabric, tokens=tokens)
    assert size / sent.rate_cap == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize("way", hybridep.WAYS)
def test_more_ranks_are_no_faster(way: str) -> None:
    """Beyond what was measured as fast as there, and a guess."""
    rates = [hybridep.bandwidth(ranks, way) for ranks in (2, 4, 8, 12, 32, 64, 72)]
    assert rates == sorted(rates, reverse=True)
    assert exchange(load_cluster("gb200-nvl64"), 64, way).evidence == "guess"


def test_links_bound_it() -> None:
    """No GPU's NVLinks carry more than they do."""
    fabric = load_cluster("gb200-nvl64")
    sent = exchange(fabric, 8, "dispatch")
    links = fabric.links.bandwidth[sent.links] / sent.usage
    assert sent.rate_cap <= links.min()


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


def job(backend: str, hosts: int, samples: int) -> Scenario:
    """Two layers of 16 experts, 1,024 wide, over eight GPUs of each host."""
    return parse_scenario(
        {
            "cluster": {
                "name": "dgx-h100-superpod",
                "gpus": 8 * hosts,
                "hosts": hosts,
            },
            "model": {
                "kind": "transformer",
                "hidden": 1024,
                "layers": 2,
                "heads": 8,
                "ffn": 2048,
                "vocab": 32000,
                "experts": 16,
                "experts_per_token": 2,
                "moe_ffn": 512,
            },
            "training": {
                "framework": "megatron",
                "seq_len": 8192,
                "micro_batch": samples,
            },
            "parallel": {"dp": 8 * hosts, "ep": 8 * hosts, "data_parallel": "zero1"},
            "megatron": {
                "moe_token_dispatcher": "flex",
                "moe_flex_dispatcher_backend": backend,
            },
        },
        "handles",
    )


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_exchange_keeps_its_routes_until_backward(hosts: int) -> None:
    """Of every token of all ranks: five bytes for each expert here, four for its row (executor.cu); in each layer."""
    deep, hybrid = (
        plan(job(backend, hosts, 1)).lowered.memory[0].peak
        for backend in ("deepep", "hybridep")
    )
    ranks = 8 * hosts
    assert hybrid - deep == 2 * 8192 * ranks * (5 * 16 // ranks + 4)


@pytest.mark.parametrize("hosts", [1, 2])
def test_its_own_buffers_lie_beside_the_allocator(hosts: int) -> None:
    """Tokens of all ranks with scales, and over the network what is sent and three buffers for each other host."""
    one, two = (
        outside(plan(job("hybridep", hosts, samples)))[0]["communication"]
        for samples in (1, 2)
    )
    tokens = 8192 * 1024 * 2.0
    beyond = 1 + 3 * (hosts - 1) if hosts > 1 else 0
    assert two - one == tokens * (8 * hosts * (1 + 1 / 64) + beyond)
