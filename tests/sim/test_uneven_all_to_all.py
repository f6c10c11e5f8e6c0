"""All-to-alls with messages of different sizes: `prestep collective --op all_to_all --counts FILE`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.collectives import uneven
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster

CLUSTERS = {"dgx-h100": None, "rail-h100": 2}


@cache
def fabric(name: str) -> Any:
    return load_cluster(name, CLUSTERS[name])


def seconds(name: str, size: float, shares: np.ndarray) -> float:
    here = fabric(name)
    plan = uneven.plan(size, here.gpus[: len(shares)], here, Nccl(), shares)
    return plan.duration(here.links.bandwidth)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("size", [2.0**10, 2.0**20, 2.0**30])
def test_equal_counts_are_an_ordinary_all_to_all(name: str, size: float) -> None:
    """The same seconds and the same bytes on every link."""
    here = fabric(name)
    n = len(here.gpus)
    plain = plan_collective("all_to_all", size, here.gpus, here, Nccl())
    same = uneven.plan(size, here.gpus, here, Nccl(), np.full((n, n), 1 / n))
    bandwidth = here.links.bandwidth
    assert same.duration(bandwidth) == pytest.approx(plain.duration(bandwidth))
    assert same.links.tolist() == plain.links.tolist()
    assert same.usage == pytest.approx(plain.usage)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 7), st.floats(1.0, 8.0))
def test_the_busiest_receiver_decides(rank: int, times: float) -> None:
    """A rank that gets so many times the mean makes a large exchange take about as many times as long."""
    counts = np.full((8, 8), (8 - times) / 7)
    counts[:, rank] = times
    even, hot = (
        seconds("dgx-h100", 2.0**30, shares)
        for shares in (np.full((8, 8), 1 / 8), counts / 8)
    )
    assert hot / even == pytest.approx(times, rel=0.15)


COUNTS = np.outer(np.arange(1.0, 9), np.arange(1.0, 9))
SHARES = COUNTS * (8 / COUNTS.sum())


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 7))
def test_turned_around_a_ring_ranks_take_as_long(by: int) -> None:
    """The same counts dealt to the next GPUs of a host: how far ranks are apart, which says the CTA, stays."""
    order = np.roll(np.arange(8), by)
    times = [
        seconds("dgx-h100", 2.0**30, one)
        for one in (SHARES, SHARES[np.ix_(order, order)])
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(8)))
def test_no_order_of_ranks_is_faster_than_the_busiest_gpu(order: list[int]) -> None:
    """Ranks in another order meet on other CTAs, so the time moves; never below what the busiest NVLink carries."""
    size, here = 2.0**30, fabric("dgx-h100")
    time = seconds("dgx-h100", size, SHARES[np.ix_(order, order)])
    out = (SHARES.sum(axis=1) - SHARES.diagonal()).max() * size
    nvlinks = here.links.bandwidth[here.links.kind == "nvlink"].sum()
    both_ways = 2 * len(here.gpus)
    assert time > out / (nvlinks / both_ways)


def run(*arguments: str) -> Any:
    asked = ("--cluster", "dgx-h100", "--min-bytes", "1G", "--max-bytes", "1G")
    return CliRunner().invoke(cli.main, ["collective", *asked, *arguments])


def test_a_file_of_counts_is_taken(tmp_path: Path) -> None:
    """One line is what every sender sends to each receiver; sizes are what a rank sends on average."""
    path = tmp_path / "counts.csv"
    path.write_text("4,1,1,1,1,1,1,1\n")
    hot = run("--op", "all_to_all", "--counts", str(path), "--json")
    even = run("--op", "all_to_all", "--json")
    assert hot.exit_code == even.exit_code == 0, hot.output
    times = [json.loads(one.stdout)[0]["time"] for one in (hot, even)]
    assert times[0] / times[1] == pytest.approx(32 / 11, rel=0.05)


@pytest.mark.parametrize(
    ("text", "op", "words"),
    [
        ("1,2,3\n", "all_to_all", "8 lines of 8 numbers"),
        ("1,1,1,1,1,1,1,-1\n", "all_to_all", "0 or more"),
        ("0,0,0,0,0,0,0,0\n", "all_to_all", "one above 0"),
        ("a,b\n", "all_to_all", "a CSV file of numbers"),
        ("1,1,1,1,1,1,1,1\n", "all_reduce", "all_to_all with nccl"),
    ],
)
def test_wrong_counts_are_a_mistake(
    tmp_path: Path, text: str, op: str, words: str
) -> None:
    """Another shape, numbers below 0, no numbers, and operations whose messages are of one size."""
    path = tmp_path / "counts.csv"
    path.write_text(text)
    result = run("--op", op, "--counts", str(path))
    assert result.exit_code == 2 and words in result.output.replace("\n", " ")
