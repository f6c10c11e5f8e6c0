"""Compiled blocks that are split over tensor-parallel ranks, or have experts: bytes and flops by hand arithmetic."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.workloads.lowered import Lowered
from tests.executed import executed
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    SEQ,
    TRANSFORMER,
    communications,
    ops,
    scenario,
    volume,
)

COMPILED, EAGER = "pytorch-compiled", "pytorch-eager"
SAMPLES = 2
ACTIVATION = 2.0 * SAMPLES * SEQ * HIDDEN  # bytes of all tokens between blocks


def step(
    framework: str = COMPILED, training: dict[str, Any] | None = None, **said: Any
) -> Lowered:
    tables = {"framework": framework} | (training or {})
    return executed(scenario(training=tables, **said), 1).lowered


def flops(low: Lowered, kind: str) -> float:
    kernels = [op.kernel for op in ops(low) if op.kernel is not None and op.layer >= 0]
    return sum(k.flops for k in kernels if kind in k.kind)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from((2, 4)), st.booleans(), st.sampled_from(("none", "full")))
def test_a_block_sums_twice_in_each_pass(
    tp: int, sequence: bool, recompute: str
) -> None:
    """Behind each half forward, before each half backward; split sequences gather there too, and at the model's ends.

    Whole sequences have gradients of query, key, value, gate and up, each summed apart. What runs again stops before
    the second sum of a block.
    """
    low = step(training={"recompute": recompute}, tp=tp, sequence_parallel=sequence)
    again = recompute == "full"
    backward = 2 if sequence else 3 + 2
    sums = LAYERS * (2 + backward + (1 if again else 0)) * ACTIVATION
    if not sequence:
        assert volume(low, "tp all_reduce") == sums
        return
    assert volume(low, "tp reduce_scatter") == sums
    gathers = LAYERS * (2 + 2 + (2 if again else 0)) + 2
    assert volume(low, "tp all_gather") == gathers * ACTIVATION


@pytest.mark.parametrize("sequence", [False, True])
def test_ranks_share_the_products(sequence: bool) -> None:
    """The tp ranks' products and attention have as many operations as those of one."""
    whole = step()
    for tp in (2, 4):
        split = step(tp=tp, sequence_parallel=sequence)
        for kind in ("mm", "attention"):
            assert tp * flops(split, kind) == pytest.approx(flops(whole, kind))


@pytest.mark.parametrize("sequence", [False, True])
def test_more_ranks_need_less_memory(sequence: bool) -> None:
    long = {"seq_len": 1024}
    peaks = [
        step(training=long, tp=tp, sequence_parallel=sequence and tp > 1).memory[0].peak
        for tp in (1, 2, 4)
    ]
    assert all(b < a for a, b in pairwise(peaks))


def test_graphs_gather_once_what_operators_gather_for_each_product() -> None:
    """Three products of attention and two of the network take one gather each."""
    said = {"tp": 2, "sequence_parallel": True}
    graph, operators = (
        communications(step(framework, None, **said)) for framework in (COMPILED, EAGER)
    )
    assert operators["tp all_gather"] - graph["tp all_gather"] == LAYERS * 3
    assert operators["tp reduce_scatter"] - graph["tp reduce_scatter"] == LAYERS * 3


@pytest.mark.parametrize(
    "said",
    [
        {"dp": 4, "ep": 2, "data_parallel": "fsdp"},
        {"dp": 4, "ep": 4},
        {"dp": 2},
        {"cp": 2, "dp": 2, "data_parallel": "fsdp"},
    ],
)
def test_experts_exchange_what_they_do_in_eager_blocks(said: dict[str, Any]) -> None:
    """Bytes on every axis and flops are those of eager blocks; launches are fewer."""
    compiled, written = (
        step(framework, model=EXPERTS, **said) for framework in (COMPILED, EAGER)
    )
    for name in communications(written):
        assert volume(compiled, name) == volume(written, name)
    assert flops(compiled, "mm") == flops(written, "mm")
    assert len(ops(compiled)) < len(ops(written))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_experts_stay_in_bf16_beside_float8(recompute: str) -> None:
    """Projections of attention are quantized, experts' products are those of a step in bf16."""
    training = {"recompute": recompute}
    plain = step(model=EXPERTS, training=training)
    fp8 = step(model=EXPERTS, training={**training, "precision": "fp8"})

    def products(low: Lowered, dtype: str) -> int:
        kernels = (op.kernel for op in ops(low) if op.layer >= 0)
        return sum(
            "mm" in k.kind and k.dtype == dtype for k in kernels if k is not None
        )

    attention = products(fp8, "fp8")
    assert attention == LAYERS * 4 * (3 if recompute == "none" else 4)
    assert products(fp8, "bf16") == products(plain, "bf16") - attention


def test_split_experts_take_one_gather_beside_attentions() -> None:
    said: dict[str, Any] = {"tp": 2, "sequence_parallel": True}
    assert communications(step(model=EXPERTS, **said)) == communications(
        step(tp=2, sequence_parallel=True)
    )


@pytest.mark.parametrize("how", [{}, {"tp": 2, "sequence_parallel": True}])
@pytest.mark.parametrize("training", [{}, {"recompute": "full"}])
@pytest.mark.parametrize(
    ("keys", "projections"),
    [
        ({"bias": True}, 7),
        ({"qkv_bias": True}, 3),
        ({"bias": True, "gated": False, "norm": "layer", "activation": "gelu"}, 6),
    ],
)
def test_biases_are_the_products_and_their_gradients_sums(
    keys: dict[str, Any],
    projections: int,
    training: dict[str, Any],
    how: dict[str, Any],
) -> None:
    """Added where they are without kernels of their own; one sum over tokens each, of what blocks of rows have summed."""
    biased = step(model=TRANSFORMER | keys, training=training, **how)
    without = TRANSFORMER | keys | {"bias": False, "qkv_bias": False}
    plain = step(model=without, training=training, **how)
    kinds, fewer = (
        Counter(op.kernel.kind for op in ops(low) if op.kernel and op.layer >= 0)
        for low in (biased, plain)
    )
    assert kinds["aten mm"] + kinds["aten addmm"] == fewer["aten mm"]
    assert kinds["aten addmm"] >= projections * LAYERS
    assert kinds["fused_sum"] - fewer["fused_sum"] == projections * LAYERS
    assert communications(biased) == communications(plain)
    assert flops(biased, "mm") == flops(plain, "mm")


def test_biases_are_reduced_with_their_weights() -> None:
    """Under DDP and FSDP, as many bytes as there are parameters."""
    for way, op in (("ddp", "all_reduce"), ("fsdp", "reduce_scatter")):
        low = step(model=TRANSFORMER | {"bias": True}, dp=2, data_parallel=way)
        assert volume(low, f"dp {op}") == pytest.approx(2.0 * low.parameters)


@pytest.mark.parametrize(
    ("model", "training", "parallel", "words"),
    [
        (TRANSFORMER, {"precision": "fp8"}, {"tp": 2}, "after their cast"),
        (TRANSFORMER, {}, {"tp": 2, "dp": 2}, "split over ranks"),
        ({"kind": "mlp", "sizes": [64, 64]}, {}, {}, "only transformer blocks"),
    ],
)
def test_what_is_not_compiled(
    model: dict[str, Any],
    training: dict[str, Any],
    parallel: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(InputError, match=words):
        step(training=training, model=model, **parallel)
