"""Intervals of collectives alone: bounds, order and grades, not figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lab.formats.leafspine import network_of
from prestep import cli
from prestep.sim.collectives.interval import (
    DIRECT,
    NETWORK,
    PARTS,
    PCIE,
    RACK,
    SHAPED,
    interval_of,
    place_of,
    spread,
    widths,
)
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.costs.spreads import quantile
from prestep.topologies import load_cluster

PLACES = sorted(widths())


def plan(cluster: str, size: float) -> tuple[object, object]:
    fabric = load_cluster(network_of(cluster) if "-nic" in cluster else cluster)
    return plan_collective("all_reduce", size, fabric.gpus, fabric, None), fabric


@given(st.sampled_from(PLACES), st.floats(0, 1))
def test_a_width_is_positive_and_no_more_than_its_parts_together(
    place: str, share: float
) -> None:
    """Between the ends the width never vanishes, and no part counts more than once."""
    found = spread(place, share)
    assert 0 < found <= math.fsum(widths()[place][part] for part in PARTS)


@pytest.mark.parametrize("place", PLACES)
def test_the_ends_have_the_width_of_their_part(place: str) -> None:
    """What is all latency is as sure as latencies are, what is all bytes as bandwidths are."""
    assert spread(place, 1.0) == widths()[place]["latency"]
    assert spread(place, 0.0) == widths()[place]["bandwidth"]


@pytest.mark.parametrize(
    ("cluster", "place"),
    [
        ("h200-host-4", "fitted"),
        ("dgx-h100", "guess"),
        ("dgx-1v", DIRECT),
        ("l40s-host", PCIE),
        ("gb200-nvl72", RACK),
        ("rail-h100", NETWORK),
        ("4x1-nic16-spine16", SHAPED),
    ],
)
def test_what_a_collective_runs_on_decides(cluster: str, place: str) -> None:
    """A GPU that was fitted, one that was not, NVLinks or PCIe without NVSwitches, a rack, networks."""
    found, fabric = plan(cluster, 2.0**26)
    assert place_of(found, fabric) == place  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [8.0, 2.0**20, 2.0**30])
def test_the_time_lies_in_the_middle_of_its_interval(size: float) -> None:
    """Of the logarithm: an interval never reaches zero, and scales with the time that is asked about."""
    found, fabric = plan("h200-host-4", size)
    time = found.duration(fabric.links.bandwidth)  # type: ignore[attr-defined]
    known = interval_of(found, fabric)  # type: ignore[arg-type]
    assert 0 < known.low < time < known.high
    assert math.sqrt(known.low * known.high) == pytest.approx(time)
    assert math.log(known.high / time) == pytest.approx(quantile() * known.spread)
    assert interval_of(found, fabric, 2 * time).high == pytest.approx(2 * known.high)  # type: ignore[arg-type]


#: `nvidia-smi topo -m` of a host with four NVLink bridges between pairs of A100 (NVIDIA/nccl-tests issue 178).
BRIDGES = """\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0
GPU1\tNV12\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0
GPU2\tNODE\tNODE\t X \tNV12\tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0
GPU3\tNODE\tNODE\tNV12\t X \tSYS\tSYS\tSYS\tSYS\t0-31,64-95\t0
GPU4\tSYS\tSYS\tSYS\tSYS\t X \tNV12\tNODE\tNODE\t32-63,96-127\t1
GPU5\tSYS\tSYS\tSYS\tSYS\tNV12\t X \tNODE\tNODE\t32-63,96-127\t1
GPU6\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tNV12\t32-63,96-127\t1
GPU7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tNV12\t X \t32-63,96-127\t1
"""


@pytest.mark.parametrize(
    ("ranks", "place", "busbw"), [(2, DIRECT, 208e9), (3, PCIE, 20e9)]
)
def test_pairs_and_triples_without_switches_lie_in_their_intervals(
    tmp_path: Path, ranks: int, place: str, busbw: float
) -> None:
    """Published all-reduces of up to 12 GB over a bridge (208 GB/s) and three GPUs (20 GB/s); no width is from them."""
    (tmp_path / "topo.txt").write_text(BRIDGES)
    fabric = load_cluster(str(tmp_path / "topo.txt"))
    size = 8 * 2.0**30
    found = plan_collective("all_reduce", size, fabric.gpus[:ranks], fabric, None)
    known = interval_of(found, fabric)
    assert place_of(found, fabric) == known.place == place
    assert known.low < size * 2 * (ranks - 1) / ranks / busbw < known.high


def test_a_rack_lies_in_its_interval_as_often_as_it_says() -> None:
    """Nine in ten all-reduces of 72 GB200 (coreweave/nccl-tests, pull request 43: us of 512 MiB to 8 GiB, twice each)."""
    fabric = load_cluster("gb200-nvl72")
    measured = {
        2.0**29: (1806.7, 1835.9),
        2.0**30: (3108.8, 2924.7),
        2.0**31: (5589.1, 5474.6),
        2.0**32: (10094, 10141),
        2.0**33: (20299, 20006),
    }
    inside = 0
    for size, times in measured.items():
        found = plan_collective("all_reduce", size, fabric.gpus, fabric, None)
        known = interval_of(found, fabric)
        inside += sum(known.low <= time * 1e-6 <= known.high for time in times)
    assert inside >= 9


def test_the_command_prints_it() -> None:
    """A column for people, `interval` in JSON; what was never measured has none."""
    words = [
        "collective",
        "--cluster",
        "h200-host-4",
        "--min-bytes",
        "1M",
        "--max-bytes",
        "1M",
    ]
    table = CliRunner().invoke(cli.main, words).stdout
    assert " 90% " in table.splitlines()[0]
    assert "nine in ten" in table
    row = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)[0]
    assert row["interval"]["low"] < row["time"] < row["interval"]["high"]
    gloo = CliRunner().invoke(cli.main, [*words, "--backend", "gloo", "--json"])
    assert json.loads(gloo.stdout)[0]["interval"] is None
