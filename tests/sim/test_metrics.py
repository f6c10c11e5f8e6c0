"""Every moment of a step belongs to one share, and the shares add up to the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.analysis.metrics import (
    breakdown,
    busiest_links,
    evidence_shares,
    flops_utilisation,
    link_utilisation,
    mean_breakdown,
    step_window,
    sweep,
    tokens_per_second,
)
from prestep.sim.analysis.timeline import KINDS, Timeline
from prestep.sim.errors import PrestepError
from tests.sim.synthetic import EXPECTED, US, timeline

Pairs = list[list[tuple[int, int]]]
INTERVALS = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=6),
    max_size=4,
)


def brute_force(layers: Pairs, start: int, end: int) -> list[int]:
    """Second by second: the first layer that covers it has it."""
    seconds = [0] * (len(layers) + 1)
    for t in range(start, end):
        covering = [
            k for k, layer in enumerate(layers) if any(a <= t < b for a, b in layer)
        ]
        seconds[min(covering, default=len(layers))] += 1
    return seconds


@given(INTERVALS, st.integers(0, 15), st.integers(1, 20))
def test_sweep_agrees_with_brute_force(layers: Pairs, start: int, length: int) -> None:
    """The sweep gives each moment to the first layer that covers it."""
    arrays = [
        (np.array([a for a, _ in x], float), np.array([b for _, b in x], float))
        for x in layers
    ]
    assert sweep(arrays, start, start + length).tolist() == brute_force(
        layers, start, start + length
    )


SPAN = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(["", "dp", "pp", "tp", "magic"]),
    st.floats(0, 10),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0, 12) | st.just(math.nan),
)


@given(st.lists(SPAN, max_size=12), st.floats(0, 5), st.floats(0, 8))
def test_shares_are_not_negative_and_sum_to_the_window(
    spans: list[tuple], start: float, length: float
) -> None:
    """Whatever runs, however it overlaps, the shares add up to the window."""
    spans_of = Timeline.build(
        rank=0,
        stream="s",
        name="x",
        kind=[s[0] for s in spans],
        axis=[s[1] for s in spans],
        start=[s[2] for s in spans],
        end=[s[2] + s[3] for s in spans],
        ready=[s[2] + s[3] * s[4] for s in spans],
        launch=[s[5] for s in spans],
    )
    shares = breakdown(spans_of, 0, start, start + length)
    assert all(seconds >= 0 for seconds in shares.values())
    assert sum(shares.values()) == pytest.approx(
        (start + length) - start, rel=1e-12, abs=1e-15
    )


def test_each_share_of_a_known_step() -> None:
    """The synthetic step has the shares that one counts by hand."""
    shares = breakdown(timeline(), 0, 12 * US, 345 * US)
    assert {name: round(s / US, 6) for name, s in shares.items()} == EXPECTED
    assert sum(shares.values()) == pytest.approx(333 * US, rel=1e-15)


def test_a_gap_is_the_hosts_only_if_the_next_launch_was_late() -> None:
    """A gap before a kernel that was launched in time is idle."""
    gap = {
        "rank": 0,
        "stream": "s",
        "kind": "kernel",
        "name": "k",
        "start": [0.0, 2.0],
        "end": [1.0, 3.0],
    }
    late = breakdown(Timeline.build(**gap, launch=[0.0, 1.5]), 0, 0.0, 3.0)
    early = breakdown(Timeline.build(**gap, launch=[0.0, 0.5]), 0, 0.0, 3.0)
    assert (late["host"], late["idle"]) == (1.0, 0.0)
    assert (early["host"], early["idle"]) == (0.0, 1.0)


def test_a_checkpoint_on_the_host_is_io() -> None:
    """Host work in the phases io, dataload and checkpoint is io; other host work is host."""
    spans = {
        "rank": 0,
        "stream": "host",
        "kind": "host",
        "name": "w",
        "start": [0.0, 1.0],
        "end": [1.0, 3.0],
    }
    shares = breakdown(
        Timeline.build(**spans, phase=["checkpoint", "python"]), 0, 0.0, 4.0
    )
    assert (shares["io"], shares["host"], shares["idle"]) == (1.0, 2.0, 1.0)


def test_steps_follow_each_other_without_gaps() -> None:
    """A step begins where the rank's work of the step before ended."""
    spans = timeline(steps=2)
    assert step_window(spans, 0, 0) == pytest.approx((12 * US, 345 * US))
    assert step_window(spans, 0, 1) == pytest.approx((345 * US, 745 * US))
    with pytest.raises(PrestepError, match="rank 3 has no GPU work in step 0"):
        step_window(spans, 3, 0)
    with pytest.raises(PrestepError, match="expected end >= start"):
        breakdown(spans, 0, 1.0, 0.0)


def test_the_mean_over_ranks_weighs_what_a_rank_stands_for() -> None:
    """A rank that stands for three counts three times, and the mean still sums to the step."""
    spans = Timeline.build(
        rank=[0, 1],
        stream="s",
        kind="kernel",
        name="k",
        start=[0.0, 0.0],
        end=[1.0, 2.0],
    )
    mean = mean_breakdown(spans, {0: (0.0, 2.0), 1: (0.0, 2.0)}, {0: 3.0, 1: 1.0})
    assert (
        mean["compute"] == 1.25
        and sum(mean.values()) == 2.0
        and list(mean)[-1] == "idle"
    )


def test_links_are_ranked_by_utilisation() -> None:
    """Utilisation is bytes over capacity; unused links are left out, and no bandwidth is no division by zero."""
    carried, bandwidth = (
        np.array([50.0, 0.0, 50.0, 0.0]),
        np.array([100.0, 100.0, 50.0, 0.0]),
    )
    assert link_utilisation(carried, bandwidth, 1.0).tolist() == [0.5, 0.0, 1.0, 0.0]
    links = busiest_links(
        ["a", "b", "c", "d"], carried, bandwidth, 1.0, np.array([0.0, 0.0, 0.25, 0.0])
    )
    assert [(x.name, x.utilisation, x.shadow_price) for x in links] == [
        ("c", 1.0, 0.25),
        ("a", 0.5, 0.0),
    ]


def test_rates_are_per_gpu() -> None:
    """Tokens per second and MFU divide by the number of GPUs."""
    assert tokens_per_second(8192, 0.5, 4) == 4096
    assert flops_utilisation(2e15, 1.0, 4, 1e15) == 0.5


def test_evidence_shares_sum_to_one() -> None:
    """Each grade has its share of the time, best grade first."""
    shares = evidence_shares(["guess", "measured", "guess"], np.array([1.0, 2.0, 1.0]))
    assert (
        shares == {"measured": 0.5, "guess": 0.5} and next(iter(shares)) == "measured"
    )
    assert evidence_shares([], np.array([])) == {}
