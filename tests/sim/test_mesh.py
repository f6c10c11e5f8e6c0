"""Rings and trees on NVLinks without a switch keep to the links that are there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import orders
from prestep.sim.collectives.nccl.searched import on_host
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster

RING = Nccl(algo="ring", proto="Simple")


def mesh_orders(name: str, count: int) -> tuple[tuple[str, ...], ...]:
    fabric = load_cluster(name)
    group = group_of(fabric, fabric.gpus[:count], Nccl())
    return orders.mesh_rings(group, fabric, Nccl())


def links_between(fabric: Any, a: str, b: str) -> int:
    rows = fabric.route(a, b)
    direct = len(rows) == 1 and fabric.links.kind[rows[0]] == "nvlink"
    return int(fabric.links.count[rows[0]]) if direct else 0


@pytest.mark.parametrize(("count", "rings"), [(4, 4), (6, 2), (8, 6)])
def test_a_dgx_1_has_the_rings_that_were_measured(count: int, rings: int) -> None:
    """All-reduces of 4, 6 and 8 of its GPUs get 85, 46 and 134 GB/s: 4, 2 and 6 links of 22."""
    assert len(mesh_orders("dgx-1v", count)) == rings


@pytest.mark.parametrize("count", [4, 6, 8])
def test_no_link_has_more_rings_than_it_has_wires(count: int) -> None:
    """Rings go from GPU to GPU over links of their own, in each direction."""
    fabric = load_cluster("dgx-1v")
    taken: dict[tuple[str, str], int] = {}
    for order in mesh_orders("dgx-1v", count):
        assert sorted(order) == sorted(fabric.gpus[:count])
        for edge in itertools.pairwise((*order, order[0])):
            taken[edge] = taken.get(edge, 0) + 1
    assert all(links_between(fabric, *edge) >= n for edge, n in taken.items())


def test_gpus_of_others_are_no_switch() -> None:
    """Links to GPUs outside the communicator lead nowhere: the search of four is that of a host with four."""
    fabric = load_cluster("dgx-1v")
    group = group_of(fabric, fabric.gpus[:4], Nccl())
    found = on_host(group, fabric, Nccl(), group.hosts[0])
    assert found.nvls is None
    assert found.ring.count == found.tree.count == 4


def test_a_large_ring_gets_what_its_links_carry() -> None:
    """A gigabyte over all eight GPUs is no faster than six wires, and reaches four fifths of them."""
    fabric = load_cluster("dgx-1v")
    plan = plan_collective("all_reduce", 2**30, fabric.gpus, fabric, RING)
    rate = 1.75 * 2**30 / plan.duration(fabric.links.bandwidth)
    wire = fabric.links.bandwidth[fabric.links.of_kind("nvlink")].min()
    assert 0.8 * 6 * wire < rate < 6 * wire


def test_a_switch_and_several_hosts_have_no_mesh() -> None:
    """NVSwitches join all GPUs alike, and between hosts other rules hold."""
    assert mesh_orders("dgx-h100", 8) == ()
    fabric = load_cluster("alcf-polaris", 2)
    group = group_of(fabric, fabric.gpus, Nccl())
    assert not orders.is_mesh(group, fabric)
    assert orders.has_meshes(group, fabric)
