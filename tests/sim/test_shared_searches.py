"""Hosts that NCCL's search cannot tell apart are searched once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.graphs import BALANCED, RING, Channels, compute
from prestep.sim.collectives.nccl.limits import Limits
from prestep.sim.collectives.nccl.searched import renumbered
from prestep.sim.collectives.nccl.system import System, system_of
from prestep.sim.collectives.nccl.ways import Way
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from tests.sample import together


def last_host(fabric: Fabric, gpus: Sequence[str], kind: str) -> System:
    group = group_of(fabric, gpus, Nccl())
    made = generation.load(kind).at(Nccl().release)
    return system_of(fabric, group, group.hosts[-1], made)


@pytest.fixture(scope="module")
def host() -> System:
    """A DGX H100 beside another, with all GPUs."""
    fabric = load_cluster("rail-h100", hosts=2)
    return last_host(fabric, fabric.gpus, "hopper")


def shuffled(system: System, draw: random.Random, nets: bool) -> System:
    """The same host with other numbers of links, and of NICs where `nets` says so."""
    links = list(range(len(system.room)))
    draw.shuffle(links)
    order = list(range(len(system.nets)))
    if nets:
        draw.shuffle(order)

    def way(one: Way) -> Way:
        return one._replace(links=tuple(links[at] for at in one.links))

    def ways(row: Sequence[Way]) -> tuple[Way, ...]:
        return tuple(map(way, row))

    return replace(
        system,
        nets=tuple(system.nets[net] for net in order),
        room=tuple(room for _, room in sorted(zip(links, system.room, strict=True))),
        between=tuple(map(ways, system.between)),
        out=tuple(ways([row[net] for net in order]) for row in system.out),
        back=tuple(ways(system.back[net]) for net in order),
        up=ways(system.up),
        down=ways(system.down),
        nvlinks=tuple(tuple(links[at] for at in row) for row in system.nvlinks),
    )


def answer(system: System, pattern: int) -> Channels:
    """What is found, without the numbers of NICs."""
    return replace(
        compute(system, pattern, 90, generation.load("hopper").net_speeds, most=2),
        nets=(),
    )


def test_numbers_of_links_do_not_count(host: System) -> None:
    """Hosts whose links alone are numbered otherwise are one."""
    other = shuffled(host, random.Random(1), nets=False)
    assert other != host and renumbered(other) == renumbered(host)


@together("seed", range(4))
@together("pattern", [RING, BALANCED])
def test_new_numbers_change_no_answer(host: System, seed: int, pattern: int) -> None:
    """Channels, speeds, hops and orders are those of the host as it was, in whatever order its NICs are."""
    other = shuffled(host, random.Random(seed), nets=True)
    assert answer(renumbered(other), pattern) == answer(other, pattern)


def test_new_numbers_twice_are_new_numbers_once(host: System) -> None:
    """A host in its normal form stays as it is."""
    once = renumbered(host)
    assert renumbered(once) == once


def test_gpus_of_a_tray_share_a_search() -> None:
    """The third GPU of trays has other NICs than the first, which lie to it as those of the first do."""
    fabric = load_cluster("gb200-nvl72", hosts=36)
    trays = (*range(5), 18, 20)  # five trays of a rack, and two of the next
    hosts = [
        last_host(fabric, [fabric.gpus[4 * t + place] for t in trays], "blackwell")
        for place in (0, 2)
    ]
    assert hosts[0] != hosts[1]
    assert renumbered(hosts[0]) == renumbered(hosts[1])


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
