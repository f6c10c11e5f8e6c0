"""Chains on the network: as one flow where links have room, event by event where they have not."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.engine.chain_run import ChainRun
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.exchange_timeline import (
    Cycle,
    Exchange,
    ExchangeTimeline,
    Piece,
)
from prestep.sim.engine.fluid import Network
from prestep.sim.graph.opgraph import Comm
from tests.sim.test_network import Flow, plan

TP = Comm("all_reduce", 10.0, ((0, 1),), "tp", 1)


def timeline(
    compute: float = 1.0, size: float = 10.0, rate: float = 10.0, times: int = 3
) -> ExchangeTimeline:
    """Repetitions of computation and an exchange behind it, which the next repetition waits for, over link 0."""
    moving = size / rate
    exchange = Exchange(
        plan(size, {0: 1.0}, cap=rate), TP, 1, 0.0, compute, compute + moving, -1
    )
    end = compute + moving
    pieces = (Piece(0.0, compute, 0), Piece(end, end, 1))
    return ExchangeTimeline(Cycle(pieces, (exchange,), end), times, 0.0)


def played(
    bandwidth: float,
    timelines: Sequence[ExchangeTimeline],
    flows: Sequence[Flow] = (),
    share: float = 1.0,
) -> tuple[list[float], list[dict[str, float]], Network]:
    """When each chain ends, of chains that begin at once beside flows; what they waited for; and the network.

    `share`: what the chains take of the time of their timelines.
    """
    env = Clock()
    network = Network(env, np.array([bandwidth]))
    ends, waits = [0.0] * len(timelines), [dict[str, float]()] * len(timelines)

    def follow(at: int, timeline: ExchangeTimeline) -> Generator[Any, Any, None]:
        time = share * timeline.duration
        chain = ChainRun(env.timeout(time), 0, time, 1.0, timeline, network)
        yield chain.end
        ends[at], waits[at] = env.now, chain.leave()

    def move(flow: Flow) -> Generator[Any, Any, None]:
        yield env.timeout(flow.begin)
        yield network.begin(flow.plan).done

    for at, one in enumerate(timelines):
        env.process(follow(at, one))
    for flow in flows:
        env.process(move(flow))
    env.run()
    return ends, waits, network


def test_alone_it_takes_its_own_time() -> None:
    """Three repetitions of 1 s of computation and 1 s of 10 bytes: 6 s, half of it waiting, 30 bytes."""
    ends, waits, network = played(10.0, [timeline()])
    assert ends == [6.0] and waits == [{"tp": 3.0}]
    assert network.carried.tolist() == [30.0]


def test_a_chain_that_is_shorter_than_its_exchanges_still_ends() -> None:
    """Noise or a constant that is off shortens a chain as a whole: of 6 s of which 3 are exchanges, 2 s are left.

    Played beside a transfer, its exchanges take their 3 s at least, and with that transfer no more than the link's 5 s.
    """
    beside = [Flow(0.0, plan(20, {0: 1.0}))]
    ends, _, network = played(10.0, [timeline()], beside, share=1 / 3)
    assert 3.0 <= ends[0] <= 5.0 + 1e-3
    assert network.carried.tolist() == pytest.approx([50.0])


def test_a_transfer_beside_it_takes_its_share() -> None:
    """20 bytes beside: 10 while it computes, 10 in 2 s at half the rate beside its first 10; it ends a second later."""
    ends, waits, network = played(10.0, [timeline()], [Flow(0.0, plan(20, {0: 1.0}))])
    assert ends == pytest.approx([7.0]) and waits[0]["tp"] == pytest.approx(4.0)
    assert network.carried.tolist() == pytest.approx([50.0])


def test_room_for_both_disturbs_nobody() -> None:
    """A transfer that is held to 5 bytes/s beside one of 10 on a link of 15: both as if they were alone."""
    beside = Flow(0.5, plan(20, {0: 1.0}, cap=5.0))
    ends, _, network = played(15.0, [timeline()], [beside])
    assert ends == [6.0] and network.solves <= 1


def test_two_that_are_alike_share_the_link() -> None:
    """Both compute 1 s and then move 10 bytes at half the rate: 3 s a repetition."""
    ends, _, network = played(10.0, [timeline(), timeline()])
    assert ends == pytest.approx([9.0, 9.0])
    assert network.carried.tolist() == pytest.approx([60.0])


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0.0, 8.0), st.floats(0.5, 40.0)), max_size=4),
    st.floats(0.1, 3.0),
    st.integers(1, 4),
)
def test_bytes_and_time_are_conserved(
    others: list[tuple[float, float]], compute: float, times: int
) -> None:
    """Whatever disturbs it and when: its bytes cross the link once, it is never faster, and time is compute or waits."""
    one = timeline(compute, times=times)
    flows = [Flow(begin, plan(size, {0: 1.0})) for begin, size in others]
    (end,), (waits,), network = played(10.0, [one], flows)
    assert network.carried[0] == pytest.approx(10.0 * times + sum(s for _, s in others))
    assert end >= one.duration - 1e-9
    assert end == pytest.approx(compute * times + waits["tp"])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.floats(1.0, 20.0), min_size=2, max_size=2), st.floats(1.0, 60.0))
def test_a_slower_link_is_never_faster(widths: list[float], size: float) -> None:
    """Of two links the narrower lets a chain and a transfer beside it end no earlier."""
    beside = [Flow(0.3, plan(size, {0: 1.0}))]
    narrow, wide = (
        played(width, [timeline(rate=min(width, 10.0))], beside)[0][0]
        for width in sorted(widths)
    )
    assert narrow >= wide - 1e-9
