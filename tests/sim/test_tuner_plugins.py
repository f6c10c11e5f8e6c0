"""What Amazon's tuner plug-in chooses, and what the newest releases of NCCL count otherwise."""

from __future__ import annotations

import re

import pytest

from prestep.sim.collectives.nccl import plugins, tuner
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster

MIB = 2.0**20
# Points of the plug-in's own test (tests/unit/region_based_tuner.cpp): a ring's region, ranks beside MiB.
EDGE = [(4, 2), (48, 16), (288, 128)]
INSIDE = [(16, 4), (128, 4), (1024, 16), (512, 128), (65_536, 256)]
OUTSIDE = [(8, 4), (8, 512), (16, 8), (32, 16), (64, 256), (256, 1024), (2, 2)]


def holds(size: float, ranks: float) -> bool:
    """Whether the region of the plug-in's test holds a point: that of gathers on P5en, one GPU of a host."""
    region = plugins.tables()["aws-p5en"]["1"]["all_gather"][2]
    return plugins.holds(region["edge"], size, ranks)


@pytest.mark.parametrize("point", EDGE + INSIDE)
def test_points_within_a_region_are_found(point: tuple[float, float]) -> None:
    assert holds(point[0] * MIB, point[1])


@pytest.mark.parametrize("point", OUTSIDE)
def test_points_beside_a_region_are_not(point: tuple[float, float]) -> None:
    assert not holds(point[0] * MIB, point[1])


def test_four_hosts_of_b200_run_what_the_plug_in_says() -> None:
    """Trees with LL and LL128, then rings and NVLSTree where NCCL alone takes NVLSTree from 4 MiB on."""
    fabric = load_cluster("aws-p6-b200")
    wanted = Nccl(version="2.27.7", tuner="aws-p6-b200")
    sizes = {
        0.125: "tree LL",
        8: "tree LL128",
        32: "ring LL128",
        128: "nvls_tree Simple",
        512: "ring Simple",
    }
    for mib, expected in sizes.items():
        plan = plan_collective("all_reduce", mib * MIB, fabric.gpus, fabric, wanted)
        assert f"{plan.algo} {plan.proto}" == expected
    few = fabric.gpus[:16]
    alone, asked = (
        plan_collective("all_reduce", 8 * MIB, few, fabric, nccl)
        for nccl in (Nccl(version="2.27.7"), wanted)
    )
    assert (alone.algo, alone.proto) == (asked.algo, asked.proto)


def test_every_region_names_what_nccl_has() -> None:
    regions = [
        region
        for platform in ("aws-p5", "aws-p5en", "aws-p6-b200", "aws-p6-b300")
        for ops in plugins.tables()[platform].values()
        for listed in ops.values()
        for region in listed
    ]
    assert len(regions) == 88
    for region in regions:
        assert re.fullmatch("ring|tree|nvls_tree|pat", region["algo"])
        assert region["proto"] in ("LL", "LL128", "Simple")
        assert len(region["edge"]) >= 3


@pytest.mark.parametrize(
    ("version", "factor"), [("2.30.7", 1.0), ("2.31.2", 1.4), ("2.32.3", 1.4)]
)
def test_rings_with_simple_are_believed_slower_on_one_blackwell_host(
    version: str, factor: float
) -> None:
    """Since 2.31 gathers and reduce-scatters; 2.32 takes a part of it back for large messages."""
    fabric = load_cluster("dgx-b200")
    wanted = Nccl(version=version)

    def latency(op: str, mib: float) -> float:
        rows = tuner.candidates(op, mib * MIB, fabric.gpus, fabric, wanted)
        return next(
            row.latency for row in rows if (row.algo, row.proto) == ("ring", "Simple")
        )

    usual = latency("all_gather", 0.01)
    assert latency("all_gather", 32) == pytest.approx(usual * factor, rel=1e-3)
    assert latency("all_reduce", 32) == latency("all_reduce", 0.001)
    large = 1.3 if version == "2.32.3" else factor
    assert latency("reduce_scatter", 1024) == pytest.approx(usual * large, rel=1e-3)
