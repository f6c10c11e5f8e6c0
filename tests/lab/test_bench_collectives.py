"""Collectives of other simulators on our engine: closed forms, what their links allow, and peers' files as imported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.bench import networks, peers
from lab.bench.collectives import (
    Operation,
    Step,
    Wire,
    activity,
    exchange,
    halving_doubling,
    plan_of,
    play,
    ring,
)
from lab.bench.networks import GIB
from prestep.sim.collectives.plan import Plan
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies import ecmp


def gpus_of(fabric: Fabric) -> np.ndarray:
    return fabric.positions(fabric.gpus)


def together(fabric: Fabric, plans: Sequence[Plan]) -> np.ndarray:
    """When each of the plans ends, all of them begun at 0."""
    named = {str(number): plan for number, plan in enumerate(plans)}
    run = play(fabric, [[Operation(0, name)] for name in named], named)
    return np.array([end[0, 0] for end in run.end])


@given(st.integers(3, 12), st.floats(1e3, 1e9))
@settings(max_examples=20, deadline=None)
def test_a_ring_takes_its_steps(n: int, size: float) -> None:
    """2 (n - 1) steps of size / n bytes and one hop."""
    fabric = networks.astra_ring(n)
    plan = activity(fabric, size, ring(gpus_of(fabric)[None, :]))
    steps = 2 * (n - 1) * (size / n / (50 * GIB) + 500e-9)
    assert together(fabric, [plan]) == pytest.approx(steps, rel=1e-9)


def test_a_slow_link_holds_the_ring() -> None:
    """The time is at least that of all bytes through the narrowest link, and more than without it."""
    fabric = networks.astra_ring(6)
    slow = with_overrides(fabric, {"router2-router3.bandwidth": "0.25x"})
    base, held = (
        together(one, [activity(one, 1e8, ring(gpus_of(one)[None, :]))])[0]
        for one in (fabric, slow)
    )
    assert held >= 2 * 5 / 6 * 1e8 / (12.5 * GIB) > base


def test_rings_that_share_links_share_their_rate() -> None:
    """Two rings over the same ranks, on the same cables, take twice as long each."""
    fabric = networks.switch(8, latency=0.0)
    plan = activity(fabric, 1e9, ring(gpus_of(fabric)[None, :]))
    one, two = together(fabric, [plan]), together(fabric, [plan, plan])
    assert two == pytest.approx(2 * one[0])


def test_halving_and_doubling_moves_what_a_ring_moves() -> None:
    """On a switch without latency both take 2 (n - 1) / n of the bytes over one link."""
    fabric = networks.switch(16, latency=0.0)
    ranks = gpus_of(fabric)[None, :]
    plans = [
        activity(fabric, 1e9, steps) for steps in (ring(ranks), halving_doubling(ranks))
    ]
    bound = 2 * 15 / 16 * 1e9 / (400 * GIB)
    assert [together(fabric, [plan])[0] for plan in plans] == pytest.approx([bound] * 2)


def test_hierarchies_are_no_faster_than_their_links() -> None:
    """More chunks overlap the two dimensions; neither dimension is faster than its bytes."""
    times = [peers.hierarchy(64, chunks)[0] for chunks in (1, 2, 8)]
    size = peers.SIZE
    inner, outer = 2 * 7 / 8 * size / (400 * GIB), 2 * 7 / 8 * size / 8 / (50 * GIB)
    assert times[0] > times[1] > times[2] > max(inner, outer)


def test_switches_that_store_packets_add_one_each() -> None:
    """A packet more for every link after the first; headers take their part of the wire."""
    fabric = networks.switch(4)
    ranks, rate = gpus_of(fabric)[None, :], 400 * GIB

    def time(wire: Wire) -> float:
        return activity(fabric, 4e6, ring(ranks), wire).duration(fabric.links.bandwidth)

    plain = time(Wire())
    assert time(Wire(packet=9000)) == pytest.approx(plain + 6 * 9000 / rate)
    assert time(Wire(header=1.01)) == pytest.approx(plain + 6 * 1e4 / rate)
    assert time(Wire(start=1e-6)) == pytest.approx(plain + 6e-6)


def test_an_exchange_is_all_its_messages() -> None:
    """What every GPU sends to every other adds up to the same bytes on every link."""
    fabric = networks.astra_hierarchy(32)
    gpus = gpus_of(fabric)
    pairs = [(a, b) for a in gpus.tolist() for b in gpus.tolist() if a != b]
    src, dst = (np.array(ends) for ends in zip(*pairs, strict=True))
    whole, parts = (
        exchange(fabric, 1e9),
        activity(fabric, 1e9, [Step(src, dst, 1 / 32, 1)]),
    )
    assert whole.links.tolist() == parts.links.tolist()
    assert whole.usage == pytest.approx(parts.usage)


@given(st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_transfers_end_no_sooner_than_their_links_allow(flows: int, seed: int) -> None:
    """Each takes at least its bytes over its narrowest link; an incast takes the sum over the last link."""
    fabric = networks.switch(16)
    sizes = np.random.default_rng(seed).uniform(1e6, 1e9, flows)
    plans = []
    for at, size in enumerate(sizes.tolist()):
        rows, share = fabric.spread(fabric.gpus[at + 1], fabric.gpus[0])
        usage = np.bincount(rows, share, len(fabric.links))
        plans.append(plan_of(size, usage, latency=0.0))
    ends = together(fabric, plans)
    assert (ends >= sizes / (400 * GIB) * (1 - 1e-9)).all()
    assert ends.max() == pytest.approx(sizes.sum() / (400 * GIB))


def test_an_imported_hierarchy_has_the_links_of_its_file() -> None:
    """A switch of 400 GiB/s in every host of eight, and one of 50 GiB/s for each place in a host."""
    fabric = networks.astra_hierarchy(32)
    widths = {
        kind: set(fabric.links.bandwidth[fabric.links.of_kind(kind)].tolist())
        for kind in ("dim0", "dim1")
    }
    assert widths == {"dim0": {400 * GIB}, "dim1": {50 * GIB}}
    assert len(fabric.links.of_kind("dim1")) == 2 * 32


def test_paths_drawn_together_are_those_drawn_one_by_one() -> None:
    """`ecmp.paths` takes the same of 64 equal paths as `ecmp.path`."""
    fabric = networks.three_tiers(192)
    ends = ((0, 191), (5, 70), (7, 6), (9, 30), (100, 3))
    flows = [(fabric.gpus[a], fabric.gpus[b], a % 3) for a, b in ends]
    drawn = ecmp.paths(fabric, flows, 3)
    for (rows, share), flow in zip(drawn, flows, strict=True):
        other, part = ecmp.path(fabric, *flow, 3)
        assert rows.tolist() == other.tolist() and share == pytest.approx(part)
