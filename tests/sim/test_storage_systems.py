"""Storage systems and transfers to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.storage import Leg, play
from sim.errors import InputError
from sim.storage.systems import load_system, names

GIB = 2.0**30
FIGURES = [
    ("nvme-raid", 26.59, 337_000),
    ("weka", 4.21, 51_000),
    ("lustre", 1.13, 17_000),
    ("ebs", 1.1, 730),
]


@pytest.mark.parametrize(("name", "throughput", "iops"), FIGURES)
def test_published_figures_come_out(name: str, throughput: float, iops: float) -> None:
    """Throughput of 1 MiB requests and requests per second of 4 KiB, 64 threads, are within 5 % of those measured."""
    system = load_system(name)
    assert system.throughput(2**20, 64) / GIB == pytest.approx(throughput, rel=0.05)
    assert system.throughput(4096, 64, random=True) / 4096 == pytest.approx(
        iops, rel=0.05
    )


@given(st.sampled_from(names()), st.integers(9, 26), st.integers(1, 200), st.booleans())
def test_more_is_never_slower(
    name: str, power: int, threads: int, random: bool
) -> None:
    """Larger requests and more threads never lower the throughput, and no curve exceeds the system's bandwidth."""
    system = load_system(name)
    rate = system.throughput(2.0**power, threads, random=random)
    assert 0 < rate <= system.bandwidth("read")
    assert system.throughput(2.0 ** (power + 1), threads, random=random) >= rate
    assert system.throughput(2.0**power, threads + 1, random=random) >= rate


def test_writers_share_a_link() -> None:
    """Two flows over one link end when it has carried both; a flow alone runs at its own cap."""
    link, once = np.array([0]), np.array([1.0])
    both = play(
        [
            [Leg("a", 10.0, links=link, usage=once)],
            [Leg("b", 10.0, links=link, usage=once)],
        ],
        np.array([5.0]),
    )
    assert both == [[pytest.approx(4.0)], [pytest.approx(4.0)]]
    assert play(
        [[Leg("wait", latency=1.0), Leg("c", 10.0, cap=2.0)]], np.array([5.0])
    ) == [[1.0, pytest.approx(6.0)]]


def test_a_request_without_bytes_is_refused() -> None:
    """Requests need bytes and threads."""
    with pytest.raises(InputError, match="at least one thread"):
        load_system("weka").throughput(0, 1)
    with pytest.raises(InputError, match="did you mean"):
        load_system("wekka")
