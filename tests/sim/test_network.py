"""The fluid network: laws of weighted max-min fairness, then transfers that come and go in time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.fluid import Network, Transfer
from tests.sim.max_min import max_min_rates

LINKS = 4
REL = 1e-6
few = settings(max_examples=25, deadline=None)


def plan(
    size: float, usage: dict[int, float], cap: float = 1e30, latency: float = 0.0
) -> Plan:
    """A transfer of `size` payload bytes that puts `usage[l]` bytes on link l per payload byte."""
    links, shares = (
        np.array(list(usage), np.int64),
        np.array(list(usage.values()), float),
    )
    return Plan(
        "send",
        size,
        ("a", "b"),
        "ring",
        "Simple",
        1,
        latency,
        links,
        shares,
        cap,
        "guess",
    )


@dataclass
class Flow:
    """A transfer in a test: when it begins, what it moves."""

    begin: float
    plan: Plan


def run(
    bandwidth: Sequence[float], flows: Sequence[Flow]
) -> tuple[list[float], Network]:
    """When each flow ends, and the network afterwards."""
    env = Clock()
    network = Network(env, np.array(bandwidth, float))
    ends = [float("nan")] * len(flows)

    def follow(at: int, flow: Flow) -> Generator[Any, Any, None]:
        yield env.timeout(flow.begin)
        yield env.timeout(flow.plan.latency)
        yield network.begin(flow.plan).done
        ends[at] = env.now

    for at, flow in enumerate(flows):
        env.process(follow(at, flow))
    env.run()
    return ends, network


widths = st.lists(st.floats(0.5, 50.0), min_size=LINKS, max_size=LINKS)
usages = st.dictionaries(
    st.integers(0, LINKS - 1), st.floats(0.1, 4.0), min_size=1, max_size=LINKS
)
caps = st.one_of(st.just(1e30), st.floats(0.1, 20.0))
plans = st.builds(plan, st.floats(0.1, 100.0), usages, caps)
flow_lists = st.lists(
    st.builds(Flow, st.floats(0.0, 10.0), plans), min_size=1, max_size=6
)


def rates_of(plans: Sequence[Plan], bandwidth: Sequence[float]) -> np.ndarray:
    args = (
        [p.links for p in plans],
        [p.usage for p in plans],
        [p.rate_cap for p in plans],
    )
    return np.array(max_min_rates(*args, np.array(bandwidth, float)))


def load_of(plans: Sequence[Plan], rates: np.ndarray) -> np.ndarray:
    """Bytes/s on every link."""
    load = np.zeros(LINKS)
    for p, rate in zip(plans, rates, strict=True):
        np.add.at(load, p.links, p.usage * rate)
    return load


@few
@given(st.lists(plans, min_size=1, max_size=6), widths)
def test_no_link_carries_more_than_its_bandwidth(
    plans: list[Plan], bandwidth: list[float]
) -> None:
    """The weighted rates over a link add up to its bandwidth at most, and no activity exceeds its own cap."""
    rates = rates_of(plans, bandwidth)
    assert (load_of(plans, rates) <= np.array(bandwidth) * (1 + REL)).all()
    assert (rates <= np.array([p.rate_cap for p in plans]) * (1 + REL)).all()
    assert (rates > 0).all()


@few
@given(st.lists(plans, min_size=1, max_size=6), widths)
def test_every_activity_has_a_bottleneck(
    plans: list[Plan], bandwidth: list[float]
) -> None:
    """Each is at its cap, or crosses a full link on which nobody is faster (the definition of max-min fairness)."""
    rates = rates_of(plans, bandwidth)
    full = load_of(plans, rates) >= np.array(bandwidth) * (1 - REL)
    fastest = [
        max(
            (r for p, r in zip(plans, rates, strict=True) if link in p.links), default=0
        )
        for link in range(LINKS)
    ]
    for p, rate in zip(plans, rates, strict=True):
        capped = rate >= p.rate_cap * (1 - REL)
        assert capped or any(
            full[link] and rate >= fastest[link] * (1 - REL) for link in p.links
        )


def test_rates_worked_out_by_hand() -> None:
    """Link 0 (10 B/s) is shared by two; the one that is held back by link 1 (2 B/s) leaves the rest to the other."""
    both = [plan(1, {0: 1.0}), plan(1, {0: 1.0, 1: 1.0})]
    assert rates_of(both, [10, 2, 1, 1]) == pytest.approx([8, 2])
    assert rates_of(both, [10, 20, 1, 1]) == pytest.approx([5, 5])
    assert rates_of(
        [plan(1, {0: 3.0}), plan(1, {0: 1.0})], [10, 1, 1, 1]
    ) == pytest.approx([2.5, 2.5])
    assert rates_of(
        [plan(1, {0: 1.0}, cap=1.0), plan(1, {0: 1.0})], [10, 1, 1, 1]
    ) == pytest.approx([1, 9])


@few
@given(
    st.lists(plans, min_size=1, max_size=6), widths, st.randoms(use_true_random=False)
)
def test_relabelling_changes_no_rate(
    plans: list[Plan], bandwidth: list[float], random: Any
) -> None:
    """Neither the order of the activities nor the numbers of the links matter."""
    order, names = list(range(len(plans))), list(range(LINKS))
    random.shuffle(order)
    random.shuffle(names)
    renamed = [
        plan(
            p.size,
            {names[x]: u for x, u in zip(p.links.tolist(), p.usage, strict=True)},
            p.rate_cap,
        )
        for p in plans
    ]
    moved = np.zeros(LINKS)
    moved[names] = bandwidth
    again = rates_of([renamed[i] for i in order], moved.tolist())
    assert again == pytest.approx(rates_of(plans, bandwidth)[order], rel=REL)


@few
@given(plans, widths, st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_a_lone_transfer_takes_the_alpha_beta_time(
    p: Plan, bandwidth: list[float], begin: float, alpha: float
) -> None:
    """On an idle network: latency, then size over the least of the cap and every link's bandwidth over usage."""
    alone = plan(
        p.size,
        dict(zip(p.links.tolist(), p.usage.tolist(), strict=True)),
        p.rate_cap,
        alpha,
    )
    ends, _ = run(bandwidth, [Flow(begin, alone)])
    rate = min([p.rate_cap, *(np.array(bandwidth)[p.links] / p.usage)])
    assert ends[0] - begin == pytest.approx(alpha + p.size / rate, rel=REL)
    assert ends[0] - begin == pytest.approx(
        alone.duration(np.array(bandwidth)), rel=REL
    )


@few
@given(flow_lists, widths)
def test_bytes_sent_are_bytes_delivered(
    flows: list[Flow], bandwidth: list[float]
) -> None:
    """Every transfer ends, never before its alpha-beta time, and each link has carried exactly what was put on it."""
    ends, network = run(bandwidth, flows)
    put = load_of([f.plan for f in flows], np.array([f.plan.size for f in flows]))
    assert network.carried == pytest.approx(put, rel=REL)
    assert not network.active
    for flow, end in zip(flows, ends, strict=True):
        assert end - flow.begin >= flow.plan.duration(np.array(bandwidth)) * (1 - REL)


@few
@given(flow_lists, widths)
def test_no_link_carries_more_than_time_allows(
    flows: list[Flow], bandwidth: list[float]
) -> None:
    """Bytes over a link are at most its bandwidth times the time in which anything was under way."""
    ends, network = run(bandwidth, flows)
    busy = max(ends) - min(f.begin for f in flows)
    assert (network.carried <= np.array(bandwidth) * busy * (1 + REL)).all()


@few
@given(flow_lists, widths, st.randoms(use_true_random=False))
def test_relabelling_changes_no_end(
    flows: list[Flow], bandwidth: list[float], random: Any
) -> None:
    """Transfers end at the same times in whatever order they are listed."""
    order = list(range(len(flows)))
    random.shuffle(order)
    ends, _ = run(bandwidth, flows)
    again, _ = run(bandwidth, [flows[i] for i in order])
    assert again == pytest.approx([ends[i] for i in order], rel=REL)


single = st.builds(
    lambda size, use, cap: plan(size, {0: use}, cap),
    st.floats(0.1, 100),
    st.floats(0.1, 4),
    caps,
)
on_one_link = st.lists(
    st.builds(Flow, st.floats(0, 10), single), min_size=1, max_size=6
)


@few
@given(on_one_link, st.floats(0.5, 50.0), st.floats(1.0, 4.0))
def test_more_bandwidth_on_one_bottleneck_slows_nobody(
    flows: list[Flow], width: float, factor: float
) -> None:
    """Where all share one link, widening it ends no transfer later. (With several links it can.)"""
    before, _ = run([width], flows)
    after, _ = run([width * factor], flows)
    assert all(b <= a * (1 + REL) for a, b in zip(before, after, strict=True))


@few
@given(flow_lists, widths)
def test_time_scales_with_bandwidth(flows: list[Flow], bandwidth: list[float]) -> None:
    """Links and caps twice as fast, and half as long between the beginnings: everything ends in half the time."""

    def double(p: Plan) -> Plan:
        return plan(
            p.size,
            dict(zip(p.links.tolist(), p.usage.tolist(), strict=True)),
            2 * p.rate_cap,
        )

    slow, _ = run(bandwidth, flows)
    fast, _ = run(
        [2 * b for b in bandwidth], [Flow(f.begin / 2, double(f.plan)) for f in flows]
    )
    assert fast == pytest.approx([end / 2 for end in slow], rel=REL)


@few
@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6), st.floats(0.5, 50.0))
def test_a_shared_link_never_idles(sizes: list[float], width: float) -> None:
    """Transfers that begin together on one link end, the last one, after all their bytes over its bandwidth."""
    ends, _ = run([width], [Flow(0.0, plan(size, {0: 1.0})) for size in sizes])
    assert max(ends) == pytest.approx(sum(sizes) / width, rel=REL)
    assert [end for _, end in sorted(zip(sizes, ends, strict=True))] == pytest.approx(
        sorted(ends), rel=REL
    )


def test_two_transfers_share_and_then_one_has_all() -> None:
    """10 and 30 bytes on 10 B/s: both at 5 until 2 s, then the second alone for 20 bytes: ends at 2 s and 4 s."""
    ends, network = run(
        [10.0], [Flow(0, plan(10, {0: 1.0})), Flow(0, plan(30, {0: 1.0}))]
    )
    assert ends == pytest.approx([2.0, 4.0])
    assert network.carried == pytest.approx([40.0])


def held(speeds: Sequence[tuple[float, float]], first: float = 1.0) -> float:
    """When 100 bytes at a cap of 10 B/s end if the cap is scaled at the given times."""
    env = Clock()
    network = Network(env, np.array([1000.0]))
    transfer: Transfer = network.begin(plan(100, {0: 1.0}, cap=10.0), first)

    def change() -> Generator[Any, Any, None]:
        for time, speed in speeds:
            yield env.timeout(time - env.now)
            transfer.limit(speed)

    env.process(change())
    ended = []
    transfer.done.callbacks.append(lambda _: ended.append(env.now))
    env.run()
    return float(ended[0])


def test_a_changed_cap_counts_from_now_on() -> None:
    """At half speed from 4 s to 8 s, 20 of 100 bytes take twice as long; a change after the end does nothing."""
    assert held([]) == pytest.approx(10.0)
    assert held([], first=0.5) == pytest.approx(20.0)
    assert held([(4.0, 0.5), (8.0, 1.0)]) == pytest.approx(12.0)
    assert held([(4.0, 0.5)]) == pytest.approx(16.0)
    assert held([(11.0, 0.1)]) == pytest.approx(10.0)


def test_only_what_shares_links_is_solved_again() -> None:
    """A transfer leaves those alone that it shares no link with, directly or through others."""
    env = Clock()
    network = Network(env, np.ones(LINKS))
    far, near, joined = (
        network.begin(plan(100, use)) for use in ({3: 1.0}, {0: 1.0}, {0: 1.0, 1: 1.0})
    )
    env.run(until=1.0)
    network.begin(plan(100, {1: 1.0}))
    env.run(until=2.0)
    traffic = network.traffic
    found = {
        t.activity.number: traffic.rate[traffic.activity == t.activity.number].tolist()
        for t in (far, near, joined)
    }
    # One rate of the first; the others' were looked for again when the fourth came, and are as before.
    assert found == {0: [1.0], 1: [0.5, 0.5], 2: [0.5, 0.5]}
