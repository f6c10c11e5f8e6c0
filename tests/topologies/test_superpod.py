"""DGX SuperPODs against the reference architecture's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers
from prestep.topologies.superpod import Params, build


@pytest.mark.parametrize(
    ("hosts", "leaves", "spines", "cores"),
    [
        (32, 8, 4, 0),
        (64, 16, 8, 0),
        (128, 32, 16, 0),
        (256, 64, 32, 0),
        (512, 128, 128, 64),
    ],
)
def test_switches_of_the_reference(
    hosts: int, leaves: int, spines: int, cores: int
) -> None:
    """Eight leaves per unit; 16 spines for 1,024 GPUs; 128 spines and 64 cores for 4,096; no switch beyond 64 ports."""
    fabric = load_cluster("dgx-h100-superpod", hosts=hosts)
    kinds, links = fabric.nodes.kinds, fabric.links
    assert (len(fabric.gpus), kinds.count("leaf")) == (8 * hosts, leaves)
    assert (kinds.count("spine"), kinds.count("core")) == (spines, cores)
    outside = np.isin(links.kind, ["nic", "spine", "core"])
    at = np.array([fabric.node_index(name) for name in links.src[outside].tolist()])
    ports = np.bincount(at, weights=links.count[outside])
    switches = [
        where for where, kind in enumerate(kinds) if kind in ("leaf", "spine", "core")
    ]
    assert (ports[switches] == 64).all()
    for kind in ("spine", "core") if cores else ("spine",):
        assert links.count[links.of_kind(kind)].sum() == 2 * 8 * hosts, (
            "a cable per NIC: full bisection"
        )


@pytest.mark.parametrize("name", ["dgx-h100-superpod", "dgx-b200-superpod"])
def test_full_bisection_with_400_gb_per_second_and_host(name: str) -> None:
    """400 GB/s per host out of the host, at the leaf and at the spine; 413 GB/s of all-gather for 1,024 GPUs."""
    fabric = load_cluster(name, hosts=128)
    _, leaf, spine = tiers(fabric)
    assert (leaf.children, spine.children) == (32, 4)
    assert [leaf.egress, spine.egress / 32] == pytest.approx([400e9, 400e9])
    assert min(tier.all_gather for tier in tiers(fabric)) == pytest.approx(
        412.9e9, rel=1e-3
    )


@pytest.mark.parametrize("units", [2, 4])
def test_maximum_flow_finds_no_narrow_place(units: int) -> None:
    """Half of a small pod sends to the other half at every NIC's full rate, also through a core."""
    fabric = compile_graph(
        build(
            Params(
                hosts=4 * units,
                hosts_per_unit=4,
                ports=8,
                gpus=4,
                nics=4,
                gpus_per_pcie_switch=1,
            )
        )
    )
    assert bool(fabric.nodes.of_kind("core")) == (units == 4)
    assert bisection(fabric) == pytest.approx(2 * 50e9 * 4 * 4 * units / 2)


def test_routes_through_the_core_go_up_and_down_once() -> None:
    """A rail stays below the core in every unit; to another rail of another unit the way is up to it and down again."""
    fabric = compile_graph(
        build(Params(hosts=16, hosts_per_unit=4, ports=8, gpus=4, nics=4))
    )
    level = {"nic": 0, "leaf": 1, "spine": 2, "core": 3}

    def levels(src: str, dst: str) -> set[tuple[int, ...]]:
        ways = [fabric.links.dst[rows].tolist() for rows, _ in fabric.routes(src, dst)]
        kinds = [
            [fabric.nodes.kinds[fabric.node_index(node)] for node in way]
            for way in ways
        ]
        return {tuple(level[kind] for kind in way if kind in level) for way in kinds}

    assert levels("host0/gpu0", "host1/gpu0") == {(0, 1, 0)}
    assert levels("host0/gpu0", "host15/gpu0") == {(0, 1, 2, 1, 0)}
    assert levels("host0/gpu0", "host15/gpu3") == {(0, 1, 2, 3, 2, 1, 0)}


def test_what_the_switches_cannot_join_is_refused() -> None:
    """More units than a switch has ports down, odd ports, an odd number of rails."""
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"hosts": 1025}, "hosts"),
        ({"ports": 48}, "ports"),
        ({"nics": 6}, "nics"),
        ({"hosts": 0}, "hosts"),
    )
    for wrong, key in mistakes:
        with pytest.raises(InputError, match=f"superpod: {key}"):
            compile_graph(build(Params(**wrong)))
