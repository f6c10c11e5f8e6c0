"""Scratch of sums over rows, and DDP's first buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.workloads.operators.row_sums import row_sum_scratch
from prestep.workloads.sharding.ddp import first_buckets_held

MIB = 2.0**20


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [
        (256, 1024, 0),
        (512, 2048, 0),
        (256, 4096, 0),
        (1024, 4096, 32 * MIB),
        (2048, 2048, 32 * MIB),
        (1024, 8192, 64 * MIB),
        (2048, 8192, 128 * MIB),
    ],
)
def test_scratch_of_a_bias_gradient_is_what_the_allocator_recorded(
    rows: int, columns: int, size: float
) -> None:
    """PyTorch 2.11 on one H200, memory history around the backward of a linear layer with a bias."""
    assert row_sum_scratch(rows, columns) == size


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_scratch_is_partial_sums_of_at_most_all_rows(rows: int, columns: int) -> None:
    """Each block leaves at most one fp32 per thread, and every thread has added at least one value."""
    assert (
        0 <= row_sum_scratch(rows, columns) <= 4.0 * 4 * (rows + 64) * (columns + 128)
    )


def test_first_buckets_are_released_once_the_watchdog_has_looked() -> None:
    """Four steps of 4 ms end before the watchdog's next look, four of 80 ms do not."""
    assert first_buckets_held(warmup=4, step_time=0.004)
    assert not first_buckets_held(warmup=4, step_time=0.080)
