"""Message by message: closed forms of rings and exchanges, and transfers that end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import lockstep, transfers
from sim.engine.lockstep import Cost
from topologies.fabric import ecmp
from validation.bench import networks
from validation.bench.networks import GIB


@given(st.integers(3, 12), st.floats(1e3, 1e9))
@settings(max_examples=20, deadline=None)
def test_a_ring_takes_its_steps(n: int, size: float) -> None:
    """2 (n - 1) steps of size / n bytes and one hop; every rank sends in every step."""
    fabric = networks.ring(n)
    played = lockstep.ring(fabric, [fabric.positions(fabric.gpus).tolist()], size)
    assert played.time == pytest.approx(
        2 * (n - 1) * (size / n / (50 * GIB) + 500e-9), rel=1e-9
    )
    assert played.messages == 2 * (n - 1) * n


def test_a_slow_link_holds_the_ring() -> None:
    """The time is at least that of all bytes through the narrowest link, and more than without it."""
    fabric = networks.ring(6)
    slow = fabric.with_overrides({"gpu2-gpu3.bandwidth": "0.25x"})
    ranks = [fabric.positions(fabric.gpus).tolist()]
    base, held = (lockstep.ring(one, ranks, 1e8).time for one in (fabric, slow))
    assert held >= 2 * 5 / 6 * 1e8 / (12.5 * GIB) > base


def test_rings_that_share_a_link_take_turns() -> None:
    """Two rings over the same ranks, on the same cables, take twice as long each."""
    fabric = networks.switch(8, latency=0.0)
    ranks = fabric.positions(fabric.gpus).tolist()
    one, two = (lockstep.ring(fabric, [ranks] * k, 1e9).time for k in (1, 2))
    assert two == pytest.approx(2 * one)


def test_halving_and_doubling_moves_what_a_ring_moves() -> None:
    """On a switch without latency both take 2 (n - 1) / n of the bytes over one link."""
    fabric = networks.switch(16, latency=0.0)
    ranks = [fabric.positions(fabric.gpus).tolist()]
    bound = 2 * 15 / 16 * 1e9 / (400 * GIB)
    assert lockstep.halving_doubling(fabric, ranks, 1e9).time == pytest.approx(bound)
    assert lockstep.ring(fabric, ranks, 1e9).time == pytest.approx(bound)


def test_hierarchies_are_no_faster_than_their_links() -> None:
    """More chunks overlap the two dimensions; neither dimension is faster than its bytes."""
    fabric = networks.hierarchy(64)
    hosts = fabric.positions(fabric.gpus).reshape(-1, 8)
    times = [
        lockstep.hierarchical(fabric, hosts, 2.0**30, chunks).time
        for chunks in (1, 2, 8)
    ]
    inner, outer = (
        2 * 7 / 8 * 2.0**30 / (400 * GIB),
        2 * 7 / 8 * 2.0**30 / 8 / (50 * GIB),
    )
    assert times[0] > times[1] > times[2] > max(inner, outer)


def test_switches_that_store_packets_add_one_each() -> None:
    """A packet more for every link after the first; headers take their part of the wire."""
    fabric = networks.switch(4)
    ranks, rate = [fabric.positions(fabric.gpus).tolist()], 400 * GIB
    plain = lockstep.ring(fabric, ranks, 4e6).time
    assert lockstep.ring(
        fabric, ranks, 4e6, cost=Cost(packet=9000)
    ).time == pytest.approx(plain + 6 * 9000 / rate)
    assert lockstep.ring(
        fabric, ranks, 4e6, cost=Cost(header=1.01)
    ).time == pytest.approx(plain + 6 * 1e4 / rate)
    assert lockstep.ring(
        fabric, ranks, 4e6, cost=Cost(start=1e-6)
    ).time == pytest.approx(plain + 6e-6)


@given(st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_transfers_end_no_sooner_than_their_links_allow(flows: int, seed: int) -> None:
    """Each takes at least its bytes over its narrowest link; an incast takes the sum over the last link."""
    fabric = networks.switch(16)
    draw = np.random.default_rng(seed)
    size = draw.uniform(1e6, 1e9, flows)
    paths = [fabric.spread(fabric.gpus[at + 1], fabric.gpus[0]) for at in range(flows)]
    done = transfers.ends(paths, size, fabric.links.bandwidth)
    assert (done.time >= size / (400 * GIB) * (1 - 1e-9)).all()
    assert done.time.max() == pytest.approx(size.sum() / (400 * GIB))
    assert done.solves <= flows


def test_paths_drawn_together_are_those_drawn_one_by_one() -> None:
    """`ecmp.paths` takes the same of 64 equal paths as `ecmp.path`."""
    fabric = networks.three_tiers(192)
    flows = [
        (fabric.gpus[a], fabric.gpus[b], a % 3)
        for a, b in ((0, 191), (5, 70), (7, 6), (9, 30), (100, 3))
    ]
    for (rows, share), flow in zip(ecmp.paths(fabric, flows, 3), flows, strict=True):
        other, part = ecmp.path(fabric, *flow, 3)
        assert rows.tolist() == other.tolist() and share == pytest.approx(part)
