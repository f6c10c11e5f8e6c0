"""Rates that are remembered: the same as solved anew, and solved once."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.engine import sharing
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.fluid import Network
from tests.sim.max_min import max_min_rates
from tests.sim.test_network import LINKS, Flow, flow_lists, plan, plans, run, widths

few = settings(max_examples=25, deadline=None)


@few
@given(flow_lists, st.lists(st.integers(0, 5), min_size=1, max_size=12), widths)
def test_columns_and_pairs_find_the_same(
    flows: list[Flow], again: list[int], bandwidth: list[float]
) -> None:
    """Transfers end at the same times whether groups are found pair by pair and remembered, or in columns and solved."""
    repeated = [
        Flow(flows[at % len(flows)].begin + k, flows[at % len(flows)].plan)
        for k, at in enumerate(again)
    ]
    ends, network = run(bandwidth, repeated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "MANY", 0)
        columns, solved = run(bandwidth, repeated)
    assert ends == pytest.approx(columns, rel=1e-12)
    assert network.carried == pytest.approx(solved.carried, rel=1e-12)


@few
@given(flow_lists, st.lists(st.integers(0, 5), min_size=1, max_size=12), widths)
def test_memory_saves_solutions_and_changes_nothing(
    flows: list[Flow], again: list[int], bandwidth: list[float]
) -> None:
    """With solutions remembered, transfers end at the very same times, and no more solutions are needed."""
    repeated = [
        Flow(flows[at % len(flows)].begin + k, flows[at % len(flows)].plan)
        for k, at in enumerate(again)
    ]
    ends, network = run(bandwidth, repeated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "REMEMBERED", 0)
        anew, forgetful = run(bandwidth, repeated)
    assert ends == anew
    assert network.solves <= forgetful.solves


@few
@given(st.lists(plans, min_size=1, max_size=6), widths)
def test_rates_are_those_of_the_solver(
    mixed: list[Any], bandwidth: list[float]
) -> None:
    """Whatever groups they fall into, all together have the max-min fair rates, also when they are asked for again."""
    network = Network(Clock(), np.array(bandwidth))
    active = [network.begin(one).activity for one in mixed]
    expected = max_min_rates(
        [p.links for p in mixed],
        [p.usage for p in mixed],
        [p.rate_cap for p in mixed],
        np.array(bandwidth),
    )
    for _ in range(2):
        found = {}
        for group in network.sharing.reached(network.active, active, []):
            rates, _ = network.sharing.rates(group)
            found |= {a.number: rate for a, rate in zip(group, rates, strict=True)}
        assert [found[at] for at in range(len(mixed))] == pytest.approx(
            expected, rel=1e-9
        )


def in_turn(
    network: Network, what: list[Any], wait: float
) -> Generator[Any, Any, None]:
    """One transfer after the other."""
    for one in what:
        yield network.begin(one).done
        yield network.env.timeout(wait)


def test_what_was_solved_is_not_solved_again() -> None:
    """Two trains of 100 equal transfers over one link: alone or shared, for two kinds: four solutions at most."""
    env = Clock()
    network = Network(env, np.ones(LINKS))
    one, other = plan(10, {0: 1.0}), plan(7, {0: 1.0, 1: 2.0})
    env.process(in_turn(network, [one] * 100, 0.5))
    env.process(in_turn(network, [other] * 100, 0.25))
    env.run()
    assert network.solves <= 4
    assert network.carried[:2] == pytest.approx([1700.0, 1400.0])


def test_a_transfer_that_touches_nobody_is_nobodys_business() -> None:
    """While a long transfer is under way, others on other links come and go: its rate is noted once, and its end."""
    env = Clock()
    network = Network(env, np.ones(LINKS))
    long = network.begin(plan(1000, {0: 1.0}))
    env.process(in_turn(network, [plan(1, {1: 1.0})] * 50, 1.0))
    env.run()
    assert (network.traffic.activity == long.activity.number).sum() == 2


def test_no_more_is_remembered_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps that are never the same twice do not fill the memory."""
    monkeypatch.setattr(sharing, "REMEMBERED", 8)
    env = Clock()
    network = Network(env, np.ones(LINKS))
    env.process(
        in_turn(
            network, [plan(1, {0: 1.0}, cap=0.1 + 0.01 * k) for k in range(50)], 0.0
        )
    )
    env.run()
    assert network.solves == 50 and len(network.sharing._solutions) <= 8
