"""Plans are remembered with the fabric that they are for, and with no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.collectives import group as groups
from prestep.sim.collectives.algorithms import ring, tree
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import graphs
from prestep.sim.collectives.nccl.system import of_parts, parts_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.wires import paths
from prestep.sim.costs import generation
from prestep.sim.exchanges import table
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.library import Library

SIZE = 2.0**26


def all_reduce(fabric: Fabric) -> Plan:
    return plan_collective("all_reduce", SIZE, fabric.gpus, fabric)


def seconds(fabric: Fabric) -> float:
    return all_reduce(fabric).duration(fabric.links.bandwidth)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["h200-host-4", "dgx-h100", "h200-leafspine-2x2"]),
    st.floats(0.0, 0.999),
    st.floats(0.05, 0.5),
)
def test_fabrics_that_differ_in_one_link_share_no_answer(
    name: str, place: float, factor: float
) -> None:
    """A link that carries the collective is slowed in a copy: the copy is slower, the fabric as fast as before."""
    fabric = load_cluster(name)
    plan, before = all_reduce(fabric), seconds(fabric)
    bandwidth = fabric.links.bandwidth.copy()
    bandwidth[plan.links[int(place * len(plan.links))]] *= factor
    slower = replace(fabric, links=replace(fabric.links, bandwidth=bandwidth))
    assert all_reduce(slower) is not plan
    assert seconds(slower) >= before
    assert seconds(fabric) == before and all_reduce(fabric) is plan


@pytest.mark.parametrize("name", ["h200-host-4", "dgx-h100", "gh200-quad"])
def test_an_equal_fabric_gives_the_same_answer(name: str) -> None:
    """A copy begins with an empty memory, and plans alike."""
    fabric = load_cluster(name)
    again = replace(fabric)
    assert paths.index_of(again) is not paths.index_of(fabric)
    assert seconds(again) == seconds(fabric)


def test_a_try_with_the_same_ways_open_finds_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search that spares walks answers as the one that takes them all."""
    fabric = load_cluster("gh200-quad")
    group = group_of(fabric, fabric.gpus)
    system = of_parts(
        parts_of(fabric, group, group.hosts[0], generation.load("hopper").at((2, 20)))
    )
    speeds = (60.0, 40.0, 20.0, 12.0)
    spared = [graphs.compute(system, p, 90, speeds) for p in (graphs.RING, graphs.TREE)]
    monkeypatch.setattr(graphs, "_farthest", lambda types, limit: limit)
    walked = [graphs.compute(system, p, 90, speeds) for p in (graphs.RING, graphs.TREE)]
    assert spared == walked


def test_what_no_size_and_no_speed_changes_is_found_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """30 sizes, what NCCL could have chosen instead, and faster links: rings, trees and the order of ranks are one."""
    made = list[str]()

    def counted(module: object, name: str) -> None:
        whole = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *values: made.append(name) or whole(*values)
        )

    counted(ring, "_load")
    counted(groups, "_laid_out")
    counted(tree, "_flows")
    rows = table.sweep(Library().read("gh200-quad", 11))
    assert {row.plan.algo for row in rows} == {"ring", "tree"}
    assert sorted(made) == ["_flows", "_laid_out", "_load"]
