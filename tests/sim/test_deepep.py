"""DeepEP's exchanges: bytes on links, the kernel's own limit, and links that are slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fit.libraries import ROWS
from lab.fit.token_exchanges import KEYS, rows_of
from prestep.sim.collectives import deepep
from prestep.sim.collectives import machine as constants
from prestep.sim.collectives.assemble import wires
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.graph.opgraph import Tokens
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.workloads.megatron.shard import distinct
from tests.sample import together

EXPERTS, CHOSEN, WIDE = 256, 8, 7168


def machine(hosts: int, **changes: str) -> Fabric:
    """So many hosts of 8 H100; changes of links by kind."""
    over = {f"{kind}.bandwidth": factor for kind, factor in changes.items()}
    name = "dgx-h100" if hosts == 1 else "rail-h100"
    return load_cluster(name, None if hosts == 1 else hosts, overrides=over)


def exchange(hosts: int, count: float = 4096.0, way: str = "combine") -> Tokens:
    """Of a rank of 8 GPUs a host."""
    ranks, met = distinct(8 * hosts, EXPERTS, CHOSEN), distinct(hosts, EXPERTS, CHOSEN)
    each = met if hosts > 1 else ranks
    return Tokens(way, count, 2.0 * WIDE, ranks, each, hosts, 20)


def planned(fabric: Fabric, tokens: Tokens) -> Plan:
    """By the front door."""
    size = tokens.count * tokens.size * tokens.hosts
    return plan_collective("all_to_all", size, fabric.gpus, fabric, tokens=tokens)


def seconds(fabric: Fabric, tokens: Tokens) -> float:
    return planned(fabric, tokens).duration(fabric.links.bandwidth)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("way", deepep.WAYS)
def test_bytes_on_links(hosts: int, way: str) -> None:
    """A NIC sends a token to each other host with a choice; NVLinks carry it to each other rank of its hosts."""
    fabric, tokens = machine(hosts), exchange(hosts, way=way)
    plan = planned(fabric, tokens)
    assert plan.algo == "deepep"
    sent = tokens.count * tokens.size * len(fabric.gpus)
    inside = sent * tokens.ranks * 7 / 8
    assert leaving(fabric, plan, "nvlink", "gpu") == pytest.approx(inside)
    between = sent * tokens.hosts * (hosts - 1) / hosts
    assert leaving(fabric, plan, "nic", "nic") == pytest.approx(between)


def leaving(fabric: Fabric, plan: Plan, kind: str, node: str) -> float:
    """Data bytes on links of a kind that begin at nodes of a kind."""
    wire = wires(plan.links, fabric, constants.of(fabric).wire)
    begin = np.array([fabric.nodes.kinds[at] for at in fabric.ends[0][plan.links]])
    mine = (fabric.links.kind[plan.links] == kind) & (begin == node)
    return float((plan.size * plan.usage * wire)[mine].sum())


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(deepep.WAYS),
    st.floats(1, 1e5),
    st.floats(1.01, 4),
    st.integers(4, 64),
)
def test_more_takes_longer(way: str, count: float, more: float, sms: int) -> None:
    """More tokens take longer, more SMs never do, and no exchange is faster than its SMs or its links."""
    fabric = machine(1)
    tokens = replace(exchange(1, count, way), sms=sms)
    time = seconds(fabric, tokens)
    assert seconds(fabric, replace(tokens, count=count * more)) > time
    assert seconds(fabric, replace(tokens, sms=sms + 1)) <= time
    inside = deepep.curves()["h100"][way]
    links = count * tokens.size * tokens.ranks * 7 / 8 / 450e9
    assert time > max(deepep.seconds_of_sms(inside, tokens), links)


@pytest.mark.parametrize(("hosts", "kind"), [(1, "nvlink"), (2, "nic")])
def test_slower_links(hosts: int, kind: str) -> None:
    """Links of a tenth make an exchange of many tokens about ten times as long as they alone would take."""
    fabric, slow = machine(hosts), machine(hosts, **{kind: "0.1x"})
    tokens = exchange(hosts, 65536.0)
    plan = planned(fabric, tokens)
    alone = plan.duration(fabric.links.bandwidth)
    slower = seconds(slow, tokens)
    assert slower > 2 * alone
    # The same plan on slower links: bytes are activities, whoever makes them slower.
    assert plan.duration(slow.links.bandwidth) > 2 * alone


@together("way", deepep.WAYS)
@together("gpu", deepep.GPUS)
def test_exchanges_that_were_held_out(gpu: str, way: str) -> None:
    """On one host the law is 4 to 7 % off in the median where nothing was fitted."""
    rows = rows_of(ROWS / "exchanges.parquet")[gpu, way].on(deepep.PER_HOST)
    law = np.array([getattr(deepep.curves()[gpu][way], key) for key in KEYS])
    errors = np.abs(np.expm1(np.log(rows.inside(law)) - rows.measured))
    assert len(errors) > 50 and np.median(errors) < 0.08


def test_where_nobody_measured() -> None:
    """Other GPUs, and racks of one NVLink domain, take NCCL's all-to-all of the same bytes."""
    for name in ("dgx-a100", "gb200-nvl72"):
        fabric = load_cluster(name)
        tokens = exchange(1)
        assert planned(fabric, tokens).algo == "pairwise"
