"""Benchmarks of the network's rates: one solution for many flows over a three-tier fat tree; `make bench` times them.

Goals: 5 ms for 10,000 random flows and 120 ms for 100,000. Without `--benchmark-enable` each runs once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prestep.sim.engine.fair_share import Incidence, rates

PORT = 12.5e9  # bytes/s of every link


def fat_tree_flows(ports: int, flows: int, random: bool) -> tuple[Incidence, int]:
    """Flows over a fat tree of switches with as many ports: to the next host, or between random ones."""
    half = ports // 2
    hosts = ports * half * half
    draw = np.random.default_rng(1)
    src = draw.integers(0, hosts, flows) if random else np.arange(flows) % hosts
    dst = draw.integers(0, hosts, flows) if random else (src + 1) % hosts
    dst = np.where(dst == src, (dst + 1) % hosts, dst)
    leaf, pod = (src // half, dst // half), (src // half**2, dst // half**2)
    way, core = draw.integers(0, half, flows), draw.integers(0, half, flows)
    up = [
        hosts * 2 + leaf[0] * half + way,
        hosts * 4 + (pod[0] * half + way) * half + core,
    ]
    down = [
        hosts * 5 + (pod[1] * half + way) * half + core,
        hosts * 3 + leaf[1] * half + way,
    ]
    links = np.stack([src, *up, *down, hosts + dst], axis=1)
    used = np.ones_like(links, dtype=bool)
    used[:, [1, 4]] = (leaf[0] != leaf[1])[:, None]
    used[:, [2, 3]] = (pod[0] != pod[1])[:, None]
    start = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return Incidence(start, links[used], np.ones(int(used.sum()))), hosts * 6


@pytest.mark.parametrize("pattern", ["ring", "random"])
@pytest.mark.parametrize(("flows", "ports"), [(1_000, 16), (10_000, 36), (100_000, 74)])
def test_rates_of_many_flows(
    benchmark: Any, flows: int, ports: int, pattern: str
) -> None:
    """No link carries more than its bandwidth, and every flow is held by a full link."""
    incidence, links = fat_tree_flows(ports, flows, pattern == "random")
    caps, bandwidth = np.full(flows, np.inf), np.full(links, PORT)
    found, bound = benchmark.pedantic(
        lambda: rates(incidence, caps, bandwidth), rounds=5, warmup_rounds=1
    )
    load = np.bincount(incidence.links, found[incidence.activity], links)
    assert (load <= PORT * (1 + 1e-9)).all() and (found > 0).all()
    assert (bound >= 0).all() and np.allclose(load[bound], PORT)
