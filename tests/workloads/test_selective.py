"""Selective checkpointing by operation (recompute = "products"): what is kept, what runs again, and its memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.workloads.small import (
    HIDDEN,
    LAYERS,
    SEQ,
    TRANSFORMER,
    communications,
    lowered,
    ops,
    volume,
)

TOKENS = 2 * SEQ
FUSED = "aten _scaled_dot_product_cudnn_attention"
FFN = 512


def step(how: str, **parallel: Any) -> Any:
    return lowered(training={"recompute": how}, **parallel)


def kernels(how: str, **parallel: Any) -> Counter[str]:
    """Kernels of blocks by their kind."""
    rows = ops(step(how, **parallel))
    return Counter(op.kernel.kind for op in rows if op.kernel and op.layer >= 0)


def test_every_second_product_and_no_attention_runs_again() -> None:
    """Seven products forward: the second, fourth and sixth run again, all but the last are used; full: all but it."""
    none, some, full = (kernels(how) for how in ("none", "products", "full"))
    assert some["aten mm"] - none["aten mm"] == 3 * LAYERS
    assert full["aten mm"] - none["aten mm"] == 6 * LAYERS
    assert some[FUSED] == none[FUSED] == LAYERS
    assert full[FUSED] == 2 * LAYERS


def test_what_is_kept_is_held_until_backward() -> None:
    """After forward, beside each block's input: products 1, 3, 5 and 7 of seven, attention's output and statistics."""
    queries, values = TOKENS * HIDDEN, TOKENS * HIDDEN // 2
    kept = 2 * (queries + values + TOKENS * FFN + TOKENS * HIDDEN)
    attention = 2 * TOKENS * HIDDEN + 4 * 8 * TOKENS
    some, full = (_after_forward(step(how)) for how in ("products", "full"))
    assert some - full == pytest.approx(LAYERS * (kept + attention), rel=0.01)


def test_attention_that_is_not_kept_runs_again() -> None:
    """As often as forward, and its output and statistics are not held meanwhile; products stay as they are."""
    kept, again = (
        step("products"),
        step("products", pytorch={"recompute_attention": True}),
    )
    kinds = [
        Counter(op.kernel.kind for op in ops(one) if op.kernel and op.layer >= 0)
        for one in (kept, again)
    ]
    assert [one[FUSED] for one in kinds] == [LAYERS, 2 * LAYERS]
    assert kinds[0]["aten mm"] == kinds[1]["aten mm"]
    attention = 2 * TOKENS * HIDDEN + 4 * 8 * TOKENS
    spared = _after_forward(kept) - _after_forward(again)
    assert spared == pytest.approx(LAYERS * attention, rel=0.01)


def _after_forward(low: Any) -> float:
    """Activations alive when backward begins."""
    memory, rows = low.memory[0], ops(low)
    begins = next(op.index for op in rows if op.phase == "backward")
    alive = memory.before["activations"]
    changes = [
        row.size
        for row in memory.log
        if row.issued < begins and row.owner == "activations"
    ]
    return float(alive + sum(changes))


def test_memory_lies_between_nothing_kept_and_everything() -> None:
    model = TRANSFORMER | {"layers": 16, "vocab": 64}
    batch = {"micro_batch": 8}
    full, some, none = (
        lowered(model, batch | {"recompute": how}).memory[0].peak
        for how in ("full", "products", "none")
    )
    assert full < some < none


def test_reduce_scatters_are_not_repeated_and_sums_are() -> None:
    """With sequence parallelism forward's reduce-scatters keep their results; its gathers run again."""
    how: dict[str, Any] = {"tp": 2, "sequence_parallel": True}
    none, some, full = (step(way, **how) for way in ("none", "products", "full"))
    scatter, gather = "tp reduce_scatter", "tp all_gather"
    assert volume(some, scatter) == volume(none, scatter) < volume(full, scatter)
    assert volume(none, gather) < volume(some, gather) <= volume(full, gather)
    plain, sums = (
        communications(step(way, tp=2))["tp all_reduce"] for way in ("none", "products")
    )
    assert (
        sums == plain + LAYERS
    )  # the one after attention; the last is needed by nobody
