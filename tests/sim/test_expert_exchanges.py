"""Exchanges of experts' tokens by library: bytes on links, laws of time, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.exchanges import experts
from prestep.sim.exchanges.experts import Exchange
from prestep.sim.exchanges.report import collective
from prestep.topologies import load_cluster

ON_NETWORK = sorted(set(experts.libraries()) - {"hybridep"})


def seconds(cluster: str, hosts: int, exchange: Exchange, **changes: str) -> float:
    over = {f"{kind}.bandwidth": factor for kind, factor in changes.items()}
    fabric = load_cluster(cluster, hosts, over)
    plan = experts.plan(exchange, fabric.gpus, fabric, Nccl())
    return plan.duration(fabric.links.bandwidth)


@pytest.mark.parametrize("library", ["pplx", "uccl"])
def test_bytes_of_nics(library: str) -> None:
    """Every choice crosses the network with `pplx`; with `uccl` a token does once for each host."""
    fabric = load_cluster("rail-h100", 4)
    exchange = Exchange("dispatch", library, 4096)
    plan = experts.plan(exchange, fabric.gpus, fabric, Nccl())
    nics = fabric.links.kind[plan.links] == "nic"
    sent = plan.size * np.sum(plan.data_usage[nics]) / 2  # out and in
    copies = exchange.topk if library == "pplx" else exchange.met(4)
    expected = 32 * 4096 * exchange.size * copies * 3 / 4
    assert sent == pytest.approx(expected)


@pytest.mark.parametrize("library", ON_NETWORK)
@pytest.mark.parametrize("op", experts.OPS)
def test_laws(library: str, op: str) -> None:
    """More tokens, slower NICs and more hosts never make an exchange shorter."""
    exchange = Exchange(op, library, 1024)
    time = seconds("rail-h200", 2, exchange)
    assert time < seconds("rail-h200", 2, replace(exchange, tokens=2048))
    assert time <= seconds("rail-h200", 2, exchange, nic="0.5x")
    assert time < seconds("rail-h200", 4, exchange)


def test_efa_costs_where_it_is_crossed() -> None:
    """EFA's facts lengthen an exchange over hosts, by trips alone at first, and none within one."""
    exchange = Exchange("dispatch", "pplx", 1)
    near = seconds("aws-p5en", 1, exchange) - seconds("dgx-h200", 1, exchange)
    far = seconds("aws-p5en", 2, exchange) - seconds("rail-h200", 2, exchange)
    facts = load_cluster("aws-p5en").cluster_facts
    assert abs(near) < 1e-7
    assert far > 2 * facts.net_write_trip + 8 * facts.net_write_target


@pytest.mark.parametrize(
    ("op", "shape", "words"),
    [
        ("dispatch", {"library": "pplxx", "topk": 300}, ["--library", "--topk"]),
        ("combine", {"experts": 100}, ["--experts", "multiple of the 16 ranks"]),
        ("dispatch", {"tokens": "0"}, ["--tokens"]),
        ("dispatch", {"library": "hybridep"}, ["hybridep on 16 h200 in 2 hosts"]),
        ("all_reduce", {"library": "pplx"}, ["--op dispatch"]),
    ],
)
def test_refused(op: str, shape: dict[str, object], words: list[str]) -> None:
    """Everything that is wrong is told at once."""
    with pytest.raises(InputError) as error:
        collective("rail-h200", op, shape, hosts=2)
    assert all(word in str(error.value) for word in words)
