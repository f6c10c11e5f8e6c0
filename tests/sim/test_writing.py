"""What a writer's thread waits for, by the loop that PyTorch's loader runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.storage.writing import AHEAD, Backlog, tensors_of, waits

SIZES = st.lists(st.floats(1e3, 1e8), max_size=40)


def queued(computes: float, step: float = 0.1, launches: int = 20) -> Backlog:
    """A step whose launches take half of it, each of which computes so much longer than it takes to launch."""
    launch = np.linspace(0.0, step / 2, launches)
    return Backlog(launch, np.minimum(launch * computes, step), step)


@given(SIZES)
def test_an_idle_gpu_is_not_waited_for(sizes: list[float]) -> None:
    """Where kernels end as they are launched, no writer waits."""
    assert waits(sizes, 2e9, queued(1.0)) == 0


@given(SIZES, st.floats(1.0, 2.0))
def test_a_wait_ends_with_the_step(sizes: list[float], computes: float) -> None:
    """No wait is longer than a step, and there are at most as many as tensors, and none before 10 MB are under way."""
    backlog = queued(computes)
    waited = waits(sizes, 2e9, backlog)
    assert 0 <= waited <= len(sizes) * backlog.step
    if sum(sizes) < AHEAD:
        assert waited == 0


def test_a_queue_is_waited_for() -> None:
    """A tensor that is queued in the middle of a step waits for what was launched by then: half a step of 100 ms is twice
    as much computing."""
    backlog = queued(2.0)
    assert backlog.wait(0.05) == pytest.approx(0.05)
    assert backlog.wait(0.025) == pytest.approx(0.025, abs=0.006)
    assert backlog.slack == pytest.approx(0.05)
    # 0.025 s for each tensor's bytes
    assert waits([5e7] * 2, 2e9, backlog) == pytest.approx(0.025, abs=0.006)


@given(SIZES, st.integers(1, 64), st.integers(0, 3), st.integers(1, 8))
def test_tensors_have_the_writers_bytes(
    sizes: list[float], writers: int, moments: int, dealt: int
) -> None:
    """A writer's tensors add up to its share; plans and results grow with tensors and writers."""
    made = tensors_of(sizes, 1e9, writers, 1 + moments, dealt)
    assert len(made.sizes) == len(sizes[::dealt]) * (1 + moments)
    if made.sizes:
        assert sum(made.sizes) == pytest.approx(1e9)
        more = tensors_of(sizes, 1e9, writers + 1, 1 + moments, dealt)
        assert more.plan > made.plan and more.results > made.results
