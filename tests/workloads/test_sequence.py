"""Sequence parallelism: gathers along the second axis, as PyTorch's functional collectives make them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.workloads.small import HIDDEN, LAYERS, SEQ, lowered, ops


def cats(micro_batch: int, sequence: bool) -> Counter[tuple[int, ...]]:
    low = lowered(
        training={"micro_batch": micro_batch}, tp=2, sequence_parallel=sequence
    )
    whole = micro_batch * SEQ * HIDDEN
    return Counter(
        op.kernel.shape
        for op in ops(low)
        if op.kernel and op.name == "aten cat" and op.kernel.shape == (whole,)
    )


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_gathered_parts_are_put_in_order(micro_batch: int) -> None:
    """all_gather_tensor leaves part after part: one copy a gather, but none of a single sample, which is a view."""
    gathers = 7 * LAYERS + 2  # blocks; the embedding's gradient and the head's input
    expected = gathers if micro_batch > 1 else 0
    assert (
        sum(cats(micro_batch, True).values()) - sum(cats(micro_batch, False).values())
        == expected
    )
