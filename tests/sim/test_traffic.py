"""Links over time: what the network notes of every rate adds up to what was carried."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.analysis.links import _union, held_by
from prestep.sim.engine.traffic import means
from prestep.sim.spec.load import parse_scenario
from prestep.topologies import load_cluster
from tests.executed import executed
from tests.sim.test_network import LINKS, Flow, flow_lists, plan, run, widths

SMALL = {
    "model": {"kind": "mlp", "sizes": [1024, 4096, 4096, 1024]},
    "training": {"micro_batch": 4},
    "parallel": {"dp": 4, "data_parallel": "ddp"},
}


@settings(max_examples=25, deadline=None)
@given(flow_lists, widths)
def test_the_load_integrates_to_what_was_carried(
    flows: list[Flow], bandwidth: list[float]
) -> None:
    """On every link, and it is never above the bandwidth."""
    ends, network = run(bandwidth, flows)
    last = max(ends) + 1.0
    for link in range(LINKS):
        time, load = network.traffic.load(link)
        area = means(time, load, np.array([0.0, last]))[0] * last
        assert area == pytest.approx(network.carried[link], rel=1e-6, abs=1e-6)
        assert (load <= bandwidth[link] * (1 + 1e-6)).all() and (
            np.diff(time) > 0
        ).all()


def test_two_transfers_that_share_a_link() -> None:
    """30 and 10 bytes on 10 B/s, the second a second later: full from 0 to 4, both held by the link."""
    _, network = run(
        [10.0], [Flow(0.0, plan(30, {0: 1.0})), Flow(1.0, plan(10, {0: 1.0}))]
    )
    time, load = network.traffic.load(0)
    assert time == pytest.approx([0.0, 4.0]) and load == pytest.approx([10.0, 0.0])
    rows, begin, end = network.traffic.segments()
    assert sorted(begin.tolist()) == pytest.approx([0, 1, 1, 3])
    assert sorted((end - begin).tolist()) == pytest.approx([1, 1, 2, 2])
    assert (network.traffic.bound[rows] == 0).all()


def test_means_of_a_step_function() -> None:
    """Level 2 from 1 to 3: nothing before, half of it in [0, 2), half in [2, 4), nothing after."""
    time, load = np.array([1.0, 3.0]), np.array([2.0, 0.0])
    assert means(time, load, np.array([0.0, 2.0, 4.0, 6.0])).tolist() == [1.0, 1.0, 0.0]
    assert means(time, load, np.array([1.5, 2.0])).tolist() == [2.0]
    assert means(np.empty(0), np.empty(0), np.array([0.0, 1.0])).tolist() == [0.0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8))
def test_a_union_counts_every_moment_once(pairs: list[tuple[int, int]]) -> None:
    """Intervals in whole seconds against a set of those seconds."""
    begin = np.array([b for b, _ in pairs], float)
    end = np.array([b + n for b, n in pairs], float)
    assert _union(begin, end) == len({s for b, n in pairs for s in range(b, b + n)})


def test_the_narrowest_kind_of_link_holds_transfers_back() -> None:
    """With a slow spine, the spine is full while gradients move; with a fast one nothing of that kind is."""
    held = {}
    for name, rate in (("slow", "100 MB/s"), ("fast", "100 GB/s")):
        cluster = {"name": "h200-leafspine-4x1", "set": {"spine.bandwidth": rate}}
        done = executed(parse_scenario({"cluster": cluster, **SMALL}, name))
        held[name] = held_by(
            done.run.traffic, done.fabric.links, (0.0, done.run.finished)
        )
    assert held["slow"]["spine"] > 0 and held["fast"].get("spine", 0.0) == 0.0


def test_a_run_without_communication_has_no_traffic() -> None:
    """One GPU: nothing moves, and nothing breaks."""
    one = {**SMALL, "parallel": {"dp": 1}}
    done = executed(
        parse_scenario({"cluster": {"name": "h200-host-4", "gpus": 1}, **one}, "one")
    )
    assert len(done.run.traffic.time) == 0 and done.run.traffic.seconds() == []
    assert (
        held_by(done.run.traffic, load_cluster("h200-host-4").links, (0.0, 1.0)) == {}
    )
