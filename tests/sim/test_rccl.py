"""What RCCL does otherwise than NCCL."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from prestep.sim import api
from prestep.sim.collectives.algorithms import tree
from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.nccl import rccl
from prestep.sim.collectives.nccl.orders import neighbours
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation, load_gpu

COUNTS = sorted(rccl.CYCLES)
# Complete graphs with fewer than n - 1 cycles that share no link.
FEWER = {4: 2, 6: 4}


@pytest.mark.parametrize("count", COUNTS)
def test_cycles_share_no_link_in_one_direction(count: int) -> None:
    """Each passes every GPU once; of eight GPUs they take all 56 directions."""
    cycles = rccl.cycles(count)
    assert all(sorted(cycle) == list(range(count)) for cycle in cycles)
    taken = Counter(
        edge for cycle in cycles for edge in neighbours(tuple(map(str, cycle)))
    )
    assert max(taken.values()) == 1
    assert len(cycles) == FEWER.get(count, count - 1)


@pytest.mark.parametrize("count", [count for count in COUNTS if count % 2 == 0])
def test_paths_share_no_link_in_one_direction(count: int) -> None:
    """Of an even number of GPUs, each way between two of them belongs to one path; every GPU begins one."""
    paths = rccl.paths(count)
    assert sorted(path[0] for path in paths) == list(range(count))
    steps = Counter(step for path in paths for step in itertools.pairwise(path))
    assert len(steps) == count * (count - 1)
    assert max(steps.values()) == 1


def test_all_links_of_a_board_carry_an_all_reduce() -> None:
    """Seven links of 48 GB/s: between the 310 and 330 GB/s that AMD states of busbw, and no single link's 48."""
    fabric = api.load_cluster("mi300x")
    size = 8 * 2**30
    plan = plan_collective("all_reduce", size, fabric.gpus, fabric)
    seconds = plan.latency + size / plan.rate_cap
    bus = size / seconds * 2 * 7 / 8
    assert 290e9 < bus < 7 * 48e9
    assert len(set(plan.links)) == 56


def test_hosts_of_nvidia_are_as_before() -> None:
    """Four A100 that are joined pair by pair run NCCL's own rings."""
    fabric = api.load_cluster("alcf-polaris", hosts=1)
    from prestep.sim.collectives.group import group_of

    assert rccl.orders(group_of(fabric, fabric.gpus), fabric) == ()
    assert rccl.caveat("a100") == ""
    assert rccl.caveat("mi300x")


def test_generations_of_amd_stand_beside_nccls() -> None:
    """RCCL counts as the NCCL of its time does, and no switch adds for it."""
    for name, like in (("cdna3", "hopper"), ("cdna4", "blackwell")):
        one, other = generation.load(name), generation.load(like)
        assert one.amd and not one.multicast and not other.amd
        assert (one.tree, one.net_speeds) == (other.tree, other.net_speeds)


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "mi350x", "mi355x"])
def test_a_faster_memory_is_never_slower(name: str) -> None:
    """MI325X, MI350X and MI355X stream no slower than an MI300X."""
    from prestep.sim.graph.kernel import Kernel

    kernel = Kernel("aten copy", (2**28,), "bf16", bytes=4.0 * 2**28)
    assert load_gpu(name).duration(kernel) <= load_gpu("mi300x").duration(kernel)


def test_trees_across_hosts_use_all_links_of_a_board_alike() -> None:
    """Eight lines of seven links carry an eighth each, up and down: on each of 56 links a quarter of the data."""
    fabric = api.load_cluster("rail-mi300x", hosts=4)
    plan = tree.plan(call_of("all_reduce", 2.0**26, fabric.gpus, fabric))
    links, gpus = fabric.links, set(fabric.gpus)
    inside = [
        usage
        for link, usage in zip(plan.links, plan.data_usage, strict=True)
        if {str(end[link]) for end in (links.src, links.dst)} <= gpus
    ]
    assert len(inside) == 4 * 56
    assert inside == pytest.approx([0.25] * len(inside))


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_tree_between_hosts_is_no_slower_than_a_ring_by_a_link(hosts: int) -> None:
    """RCCL runs trees under LL128 at 16 MiB; measured there on MI350X: 127 GB/s of bus bandwidth on two hosts."""
    fabric = api.load_cluster("rail-mi300x", hosts=hosts)
    size = 2.0**25
    forced = Nccl(algo="tree", proto="LL128")
    plan = plan_collective("all_reduce", size, fabric.gpus, fabric, forced)
    seconds = plan.latency + size / plan.rate_cap
    assert 100e9 < size / seconds * 2 * (1 - 1 / (8 * hosts)) < 250e9
