"""Collectives of many ranks are counted in columns: the same bytes as flow by flow, and what depends on no size once."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.sim.collectives.algorithms import pairwise
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, transport
from prestep.topologies import load_cluster, rail_optimized
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph


def rails(hosts: int) -> Fabric:
    params = rail_optimized.Params(hosts=hosts, hosts_per_group=4, spines=2)
    return compile_graph(rail_optimized.build(params))


@pytest.mark.parametrize("relay", [True, False])
@pytest.mark.parametrize("name", ["rails", "h200-leafspine-2x2", "gb200-nvl72"])
def test_an_all_to_all_by_classes_is_the_sum_of_its_messages(
    name: str, relay: bool
) -> None:
    """With PXN and without: the bytes on every link are those of n (n - 1) messages along their own routes."""
    fabric = rails(5) if name == "rails" else load_cluster(name)
    gpus = fabric.gpus[:40]  # whole hosts of all of them
    group = group_of(fabric, gpus)
    flows = pairwise.flows("all_to_all", gpus)
    total = np.zeros(len(fabric.links))
    for src, dst, amount in transport.relayed(flows, group) if relay else flows:
        rows, share = fabric.spread(src, dst)
        total[rows] += share * amount
    found = pairwise._exchanged(fabric, group, relay and transport.relays(group))
    assert found == pytest.approx(total, rel=1e-10)
    assert np.array_equal(found > 0, total > 0)


OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@pytest.mark.parametrize("op", OPS)
def test_columns_and_flows_make_the_same_plan(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of flows from which columns are used decides nothing but the time it takes."""

    def planned(many: int) -> Plan:
        monkeypatch.setattr(paths, "MANY", many)
        monkeypatch.setattr(pairwise, "MANY_RANKS", many)
        fabric = rails(5)
        return plan_collective(op, 2.0**26, fabric.gpus, fabric)

    one, other = planned(0), planned(1 << 30)
    assert (one.algo, one.proto, one.channels) == (
        other.algo,
        other.proto,
        other.channels,
    )
    assert one.links.tolist() == other.links.tolist()
    assert one.usage == pytest.approx(other.usage, rel=1e-12)
    assert one.latency == pytest.approx(other.latency, rel=1e-12)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algo", ["ring", None])
def test_links_are_counted_once_for_all_sizes(
    op: str, algo: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second size of the same operation asks the fabric for no route."""
    fabric = rails(5)
    wanted = Nccl(algo=None if op == "all_to_all" else algo)
    plan_collective(op, 2.0**26, fabric.gpus, fabric, wanted)

    def asked(*_: object) -> None:
        raise AssertionError("a route was asked for")

    for name in ("loads", "spreads", "spread", "exchange"):
        monkeypatch.setattr(Fabric, name, asked)
    plan_collective(op, 2.0**27, fabric.gpus, fabric, wanted)
