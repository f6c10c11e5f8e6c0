"""Intervals of collectives alone: bounds, order and grades, not figures."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import cli
from sim.collectives.interval import (
    NETWORK,
    PARTS,
    SHAPED,
    place_of,
    spread,
    sure,
    widths,
)
from sim.collectives.planner import plan_collective
from sim.costs.spreads import quantile
from topologies import load_cluster
from validation.formats.leafspine import build

PLACES = sorted(widths())


def plan(cluster: str, size: float) -> tuple[object, object]:
    fabric = build(cluster) if "-nic" in cluster else load_cluster(cluster)
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
        ("rail-h100", NETWORK),
        ("4x1-nic16-spine16", SHAPED),
    ],
)
def test_what_a_collective_runs_on_decides(cluster: str, place: str) -> None:
    """A GPU that was fitted, one that was not, a network, one whose ports are shaped."""
    found, fabric = plan(cluster, 2.0**26)
    assert place_of(found, fabric) == place  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [8.0, 2.0**20, 2.0**30])
def test_the_time_lies_in_the_middle_of_its_interval(size: float) -> None:
    """Of the logarithm: an interval never reaches zero, and scales with the time that is asked about."""
    found, fabric = plan("h200-host-4", size)
    time = found.duration(fabric.links.bandwidth)  # type: ignore[attr-defined]
    known = sure(found, fabric)  # type: ignore[arg-type]
    assert 0 < known.low < time < known.high
    assert math.sqrt(known.low * known.high) == pytest.approx(time)
    assert math.log(known.high / time) == pytest.approx(quantile() * known.spread)
    assert sure(found, fabric, 2 * time).high == pytest.approx(2 * known.high)  # type: ignore[arg-type]


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
