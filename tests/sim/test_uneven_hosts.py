"""Hosts with different numbers of GPUs: what a communicator gets does not depend on which of them comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from prestep.sim.analysis.caveats import lopsided
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl.search import Graph, search
from prestep.sim.collectives.nccl.system import of_parts, parts_of
from prestep.sim.collectives.plan import changed
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.sim.graph.opgraph import Comm
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric

RACKS = load_cluster("gb200-nvl72", hosts=36)


def found(fabric: Fabric, *hosts: Sequence[str]) -> tuple[Group, Graph]:
    group = group_of(fabric, [gpu for host in hosts for gpu in host])
    return group, search(group, fabric.gpu_model, Nccl(), fabric)


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 18), st.integers(1, 8), st.integers(0, 3))
@example(72, 3, 1)
def test_the_first_rack_does_not_decide(many: int, few: int, skipped: int) -> None:
    """Channels, speeds, NICs and protocols are the same when the smaller share of a rack comes first.

    Shares of one size are taken to lie alike, as `prestep.sim.collectives.nccl.searched` says: the first of them is searched.
    A whole rack is searched once: the search of so many GPUs takes a second and more.
    """
    assume(many != few)
    large = RACKS.gpus[:72][-many:]
    small = RACKS.gpus[72 + skipped : 72 + skipped + few]
    one, two = found(RACKS, large, small), found(RACKS, small, large)
    assert one[1] == two[1]
    assert one[0].net == two[0].net


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_nor_does_the_time(op: str) -> None:
    """35 GPUs of a rack and two of the next take as long as two and 35, and no less than their NICs allow."""
    large, small = RACKS.gpus[37:72], RACKS.gpus[72:74]
    one, two = (
        plan_collective(op, 2.0**30, ranks, RACKS, Nccl()).duration(
            RACKS.links.bandwidth
        )
        for ranks in (large + small, small + large)
    )
    assert one == pytest.approx(two, rel=1e-9)
    assert one > 2.0**30 / (4 * 50e9)


def test_which_nics_count_as_one_is_a_matter_of_the_machine() -> None:
    """Four NICs beside each GPU of a p5 are one, whatever GPUs take part; a GPU alone on a DGX has eight to see."""
    for name, gpus, nics, speed in (("aws-p5", 2, 8, 50e9), ("rail-h100", 1, 8, 50e9)):
        fabric = load_cluster(name, hosts=2)
        each = len(fabric.gpus) // 2
        hosts = fabric.gpus[:gpus], fabric.gpus[each : each + gpus]
        group, _ = found(fabric, *hosts)
        system = of_parts(
            parts_of(
                fabric, group, group.hosts[0], generation.load("hopper").at((2, 20))
            )
        )
        assert system.nets == nics
        assert max(system.speed) * 1e6 <= speed * 1.001


def test_what_crosses_takes_the_nics_of_the_smaller_share() -> None:
    """Twice the GPUs of the next rack, twice their NICs: 1 GiB of gradients take about half as long."""
    times = [
        plan_collective(
            "reduce_scatter", 2.0**30, RACKS.gpus[40 : 72 + few], RACKS, Nccl()
        ).duration(RACKS.links.bandwidth)
        for few in (2, 4, 8)
    ]
    assert times[0] / times[1] == pytest.approx(2, rel=0.1)
    assert times[1] / times[2] == pytest.approx(2, rel=0.1)


def test_a_lopsided_communicator_is_said() -> None:
    """35 and 2 GPUs of a rack are a warning; 36 of one, 18 and 18, small messages and pairs are none."""

    def said(first: int, last: int, size: float = 2.0**30) -> tuple[str, ...]:
        comm = Comm("all_reduce", size, (tuple(range(first, last)),), "dp", 1)
        return lopsided(RACKS, RACKS.gpus, [comm])

    assert len(said(37, 74)) == 1
    assert "35 GPUs" in said(37, 74)[0] and "2 GPUs" in said(37, 74)[0]
    assert said(36, 72) == said(54, 90) == said(37, 74, 8.0) == said(71, 73) == ()


def test_a_changed_copy_has_worked_nothing_out() -> None:
    """What a group found of its hosts does not hold for a copy with others."""
    fabric = load_cluster("rail-h100", 2)
    group = group_of(fabric, fabric.gpus)
    assert group.largest == 8
    one = changed(group, hosts=(fabric.gpus[:4],))
    assert one.largest == 4 and one.ranks == group.ranks and group.largest == 8
