"""Hosts that NCCL's search cannot tell apart are searched once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import searched
from prestep.sim.collectives.nccl.graphs import BALANCED, RING, Channels, compute
from prestep.sim.collectives.nccl.limits import Limits
from prestep.sim.collectives.nccl.system import System, of_parts, parts_of
from prestep.sim.collectives.nccl.walk import Walk
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric


def last_host(fabric: Fabric, gpus: Sequence[str], kind: str) -> System:
    group = group_of(fabric, gpus, Nccl())
    made = generation.load(kind).at(Nccl().release)
    return of_parts(parts_of(fabric, group, group.hosts[-1], made))


def answer(system: System, pattern: int) -> Channels:
    """What is found, without the numbers of NICs."""
    return replace(
        compute(system, pattern, 90, generation.load("hopper").net_speeds, most=2),
        nets=(),
    )


def test_hosts_of_the_same_parts_share_a_search() -> None:
    """The first and the last two trays of a rack are one host to the search."""
    fabric = load_cluster("gb200-nvl72", hosts=36)
    for trays in ((0, 1), (16, 17)):
        gpus = [
            fabric.gpus[4 * tray + k] for tray in (*trays, 18, 19) for k in range(4)
        ]
        group = group_of(fabric, gpus, Nccl())
        searched.on_host(group, fabric, Nccl(), group.hosts[0])
    assert searched._graphs.cache_info().hits


@pytest.mark.parametrize(
    ("cluster", "hosts", "gpus"),
    [("gb200-nvl72", 20, 78), ("rail-h100", 2, 15), ("aws-p4de", 2, 13)],
)
@pytest.mark.parametrize("pattern", [RING, BALANCED])
def test_walks_that_end_early_find_the_same(
    cluster: str, hosts: int, gpus: int, pattern: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the links have no room for is not found by walking on, on the smaller of two hosts."""
    fabric = load_cluster(cluster, hosts=hosts)
    host = last_host(fabric, fabric.gpus[:gpus], "hopper")
    early = answer(host, pattern)
    monkeypatch.setattr(Limits, "improvable", lambda *_: True)
    assert early.count and answer(host, pattern) == early


def test_rings_that_cannot_leave_take_the_steps_that_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On racks of NVL72 at speeds for which no NIC has room, with what is left of the budget."""
    fabric = load_cluster("gb200-nvl72", hosts=36)
    counted: list[int] = []
    shortcut = Walk.steps_without_exit

    def walked(walk: Walk) -> None:
        steps = shortcut(walk)
        if steps is not None:
            whole = replace(walk)
            with monkeypatch.context() as within:
                within.setattr(Walk, "steps_without_exit", lambda _: None)
                whole.run()
            assert whole.time == max(0, walk.time - steps)
            assert whole.best is walk.best
            counted.append(steps)

    monkeypatch.setattr(Walk, "steps_without_exit", walked)
    for gpus in (80, 96, 112):
        answer(last_host(fabric, fabric.gpus[:gpus], "blackwell"), RING)
    assert counted
