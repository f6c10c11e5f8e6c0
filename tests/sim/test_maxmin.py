"""The solver of rates against others: water-filling as in textbooks, a linear program per level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.engine.fair_share import Incidence, rates
from tests.sim.max_min import max_min_rates

REL = 1e-6


def random_case(
    seed: int,
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """Links, usages and caps of activities, and bandwidths; some links are equal, some activities have no cap."""
    draw = np.random.default_rng(seed)
    count, width = int(draw.integers(1, 30)), int(draw.integers(1, 15))
    links = [
        draw.choice(width, size=int(draw.integers(1, min(5, width) + 1)), replace=False)
        for _ in range(count)
    ]
    usage = [draw.choice([0.5, 1.0, 1.0, 2.0], size=len(ls)) for ls in links]
    caps = np.where(draw.random(count) < 0.7, np.inf, draw.uniform(0.1, 5.0, count))
    return (
        links,
        usage,
        caps,
        draw.choice([1.0, 2.0, 5.0, float(draw.uniform(0.5, 9.0))], size=width),
    )


def water_filling(
    links: Any, usage: Any, caps: Any, bandwidth: np.ndarray
) -> np.ndarray:
    """The textbook: all grow together until one link fills or one cap is reached; those stop, the others go on."""
    n = len(links)
    rate, free, growing = np.zeros(n), bandwidth.astype(float).copy(), set(range(n))
    while growing:
        weight = np.zeros(len(bandwidth))
        for a in growing:
            np.add.at(weight, links[a], usage[a])
        steps = [free[x] / weight[x] for x in np.flatnonzero(weight)] + [
            caps[a] - rate[a] for a in growing
        ]
        step = max(0.0, min(steps))
        for a in growing:
            rate[a] += step
        free -= weight * step
        full = {x for x in np.flatnonzero(weight) if free[x] <= 1e-9 * bandwidth[x]}
        stopped = {
            a
            for a in growing
            if rate[a] >= caps[a] * (1 - 1e-12) or full & set(links[a].tolist())
        }
        assert stopped
        growing -= stopped
    return rate


def by_linear_programs(
    links: Any, usage: Any, caps: Any, bandwidth: np.ndarray
) -> np.ndarray:
    """The definition: raise the least rate as far as it goes, fix those that can get no more, and again."""
    scipy = pytest.importorskip("scipy.optimize")
    n = len(links)
    matrix = np.zeros((len(bandwidth), n))
    for a in range(n):
        np.add.at(matrix[:, a], links[a], usage[a])
    rate, fixed = np.full(n, np.nan), np.zeros(n, dtype=bool)
    while not fixed.all():
        # Variables: the rates, and the level t that all which are not fixed reach.
        least = np.zeros((n, n + 1))
        least[np.arange(n), np.arange(n)], least[:, n] = -1.0, 1.0
        above = np.vstack(
            [np.hstack([matrix, np.zeros((len(bandwidth), 1))]), least[~fixed]]
        )
        limit = np.concatenate([bandwidth, np.zeros((~fixed).sum())])
        bounds = [
            (rate[a], rate[a]) if fixed[a] else (0, caps[a]) for a in range(n)
        ] + [(0, None)]
        level = scipy.linprog(
            np.eye(n + 1)[n] * -1, A_ub=above, b_ub=limit, bounds=bounds
        ).x[n]
        for a in np.flatnonzero(~fixed):
            # Nobody below the level, and this one as far above it as it goes.
            floor = [
                (rate[b], rate[b]) if fixed[b] else (level * (1 - 1e-9), caps[b])
                for b in range(n)
            ]
            most = scipy.linprog(
                -np.eye(n)[a], A_ub=matrix, b_ub=bandwidth, bounds=floor
            ).x[a]
            if most <= level * (1 + 1e-6) + 1e-9:
                rate[a], fixed[a] = level, True
    return rate


@given(st.integers(0, 10**6))
def test_it_agrees_with_the_textbook(seed: int) -> None:
    """Freezing every locally tightest link at once gives the rates of filling level by level."""
    case = random_case(seed)
    assert max_min_rates(*case) == pytest.approx(water_filling(*case), rel=REL)


@pytest.mark.parametrize("seed", range(12))
def test_it_agrees_with_linear_programs(seed: int) -> None:
    """The rates are lexicographically the largest, by a solver that knows nothing of filling."""
    case = random_case(seed)
    assert max_min_rates(*case) == pytest.approx(by_linear_programs(*case), rel=1e-5)


@given(st.integers(0, 10**6))
def test_what_holds_an_activity_is_full(seed: int) -> None:
    """Every activity is at its cap, or its bound is a full link of its own on which nobody is faster."""
    links, usage, caps, bandwidth = random_case(seed)
    found, bound = rates(Incidence.of(links, usage), caps, bandwidth)
    load = np.zeros(len(bandwidth))
    for a, (ls, us) in enumerate(zip(links, usage, strict=True)):
        np.add.at(load, ls, us * found[a])
    for a, link in enumerate(bound.tolist()):
        if link < 0:
            assert found[a] == caps[a]
        else:
            assert link in links[a] and load[link] == pytest.approx(
                bandwidth[link], rel=REL
            )
            assert found[a] >= max(
                found[b] for b in range(len(links)) if link in links[b]
            ) * (1 - REL)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_parts_that_share_no_link_do_not_matter_to_each_other(
    one: int, other: int
) -> None:
    """Two networks solved together have the rates that each has alone."""
    a, b = random_case(one), random_case(other)
    both = max_min_rates(
        [*a[0], *(ls + len(a[3]) for ls in b[0])],
        [*a[1], *b[1]],
        [*a[2], *b[2]],
        np.concatenate([a[3], b[3]]),
    )
    assert both == pytest.approx([*max_min_rates(*a), *max_min_rates(*b)], rel=REL)


def test_an_activity_without_links_runs_at_its_cap() -> None:
    """Alone and beside others; a link that it uses nothing of does not count."""
    nothing, one = np.empty(0, np.int64), np.array([0])
    assert max_min_rates([nothing], [np.empty(0)], [3.0], np.ones(1)) == [3.0]
    mixed = max_min_rates(
        [nothing, one, one],
        [np.empty(0), np.zeros(1), np.ones(1)],
        [3.0, 4.0, 9.0],
        np.ones(1),
    )
    assert mixed == [3.0, 4.0, 1.0]
    assert max_min_rates([], [], [], np.ones(1)) == []
