"""No link that is slower makes a collective faster, on every bundled cluster: exceptions are NCCL's choices, by name."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import search, searched
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.edit.overrides import with_overrides

OPS = ("all_reduce", "all_gather", "broadcast", "all_to_all")
SIZES = (2.0**16, 2.0**24, 2.0**33)
HOSTS = 4  # of clusters that have more
#: Clusters on which NCCL chooses better with half the bandwidth of a kind of links, and what it then chooses otherwise.
#: NCCL's cost model believes in bandwidths that its algorithms do not reach, and its search in rings that its proxies
#: do not carry: with slower links it believes less.
BETTER_CHOICES = {
    # Rings that leave a host by the NIC by which they enter it: each proxy thread then has one direction.
    ("alcf-polaris-tcp", "pcie"): {"rings"},
    ("alcf-polaris-tcp", "nic"): {"rings"},
    ("cscs-alps", "pcie"): {"rings"},
    ("cscs-alps-no-gdrcopy", "pcie"): {"rings"},
    # Two hosts of four GPUs: a tree, and such rings.
    ("alcf-sirius", "pcie"): {"algorithm", "rings"},
    ("alcf-sirius-software", "pcie"): {"algorithm", "rings"},
    ("alcf-sirius-tcp", "pcie"): {"algorithm", "rings"},
    ("alcf-sirius-tcp", "nic"): {"algorithm", "rings"},
    # Fewer channels for each message of an all-to-all: fewer parts for the proxy to post.
    ("dgx-b300-superpod", "nvlink"): {"channels"},
    ("dgx-b300-superpod", "pcie"): {"channels"},
    ("dgx-b300-superpod", "nic"): {"channels"},
    ("spectrum-x-b300", "nvlink"): {"channels"},
    ("spectrum-x-b300", "pcie"): {"channels"},
    ("spectrum-x-b300", "nic"): {"channels"},
    # Racks: NVLink SHARP in place of LL at 64 KiB, and LL128 in place of NVLink SHARP at 16 MiB.
    ("gb200-nvl64", "nvlink"): {"algorithm"},
    ("gb200-nvl72", "nvlink"): {"algorithm"},
    ("gb200-superpod-576", "nvlink"): {"algorithm"},
    ("gb300-nvl64", "nvlink"): {"algorithm"},
    ("gb300-nvl72", "nvlink"): {"algorithm"},
    ("gb300-superpod-576", "nvlink"): {"algorithm"},
    # A ring in place of a tree, both with LL128; the search finds other rings as well.
}
#: Searches of whose rings take half a minute.
SLOW = {
    *("mi300x", "mi325x", "mi350x", "mi355x"),
    *("rail-mi300x", "rail-mi325x", "rail-mi350x", "rail-mi355x"),
}


def fabric_of(name: str) -> Any:
    fabric = load_cluster(name)
    return fabric if len(fabric.hosts) <= HOSTS else load_cluster(name, HOSTS)


def choices(fabric: Any, plan: Plan) -> dict[str, Any]:
    """What NCCL chose: algorithm and protocol, channels, and the rings of its search where it has to find them."""
    group, rings = group_of(fabric, fabric.gpus), None
    if not search.switched(group, fabric):
        hosts = searched.every_host(group, fabric, Nccl())
        rings = [(host.ring.orders, host.ring.cross) for host in hosts]
    chosen = plan.algo, plan.proto
    return {"algorithm": chosen, "channels": plan.channels, "rings": rings}


def differences(fabric: Any, plan: Plan, other: Any, second: Plan) -> set[str]:
    """Kinds of choices that differ; what follows from another algorithm is not named apart."""
    before, after = choices(fabric, plan), choices(other, second)
    differ = {name for name in before if before[name] != after[name]}
    return differ - {"channels"} if len(differ) > 1 else differ


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in cluster_names()
    ],
)
def test_no_slower_link_makes_a_collective_faster(name: str) -> None:
    """Half the bandwidth of any kind of links: no less time, unless NCCL chooses otherwise; those are named above."""
    fabric = fabric_of(name)
    better: dict[tuple[str, str], set[str]] = {}
    for kind in fabric.links.kinds:
        slower = with_overrides(fabric, {f"{kind}.bandwidth": "0.5x"})
        for op in OPS:
            for size in SIZES:
                full = plan_collective(op, size, fabric.gpus, fabric)
                half = plan_collective(op, size, slower.gpus, slower)
                least = full.duration(fabric.links.bandwidth) * (1 - 1e-9)
                if half.duration(slower.links.bandwidth) >= least:
                    continue
                differ = differences(fabric, full, slower, half)
                assert differ, (name, kind, op, size, "with the same choice")
                better.setdefault((name, kind), set()).update(differ)
    assert better == {k: named for k, named in BETTER_CHOICES.items() if k[0] == name}
