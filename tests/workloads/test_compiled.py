"""Compiled blocks launch the fused kernels that PyTorch's traces show, cut into DDP's buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from prestep.workloads.torch import aten
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.compiled import cut
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer
from tests.workloads.recorded import (
    ATTENTION,
    MIB,
    STEPS,
    bucketed,
    eager,
    transformer,
    whole,
    words,
)


def test_compiled_block() -> None:
    """A block compiled as one graph launches what trace 8b-single-b1-compiled shows: 18 and 34 CUDA kernels."""
    step = STEPS["llama compiled"]()
    assert step.kernels(2, False) == words(
        "fused_norm mm mm mm fused_rope fused_rope attention_fwd fused_transpose mm fused_add_norm "
        "mm mm fused_silu_mul mm fused_add"
    )
    assert step.kernels(2, True) == words(
        "mm mm fused_silu_mul_bwd mm mm fused_norm_bwd mm attention_bwd fused_rope_bwd fused_rope_bwd "
        "mm mm mm mm mm fused_norm_bwd_weight fused_norm_bwd fused_sum fused_sum mm mm mm mm"
    )
    assert (len(step.kernels(2, False)) + 3, len(step.kernels(2, True)) + 5 + 6) == (
        18,
        34,
    )
    eager_step = transformer("llama3-8b-plain", 1, eager)
    assert (
        eager_step.saved - step.saved == 4 * 2048 * 14336 * 2
    )  # the activation before the product, in 4 blocks


def test_compiled_block_in_buckets() -> None:
    """Under DDP the 1b block is four graphs (trace 1b-ddp4-b2-compiled: 19 and 35 CUDA kernels but for the hooks)."""
    step = STEPS["llama compiled in buckets"]()
    assert step.kernels(2, False) == words(
        "fused_norm mm mm mm fused_rope fused_rope attention_fwd fused_transpose mm fused_add_norm "
        "mm fused_silu mm fused_mul mm fused_add"
    )
    assert step.kernels(2, True) == words(
        "mm mm fused_mul_bwd mm mm fused_silu_bwd mm mm add fused_norm_bwd sum fused_cast mm mm "
        "attention_bwd mm mm fused_rope_bwd mm mm fused_rope_bwd mm mm fused_norm_bwd sum fused_cast"
    )
    assert (len(step.kernels(2, False)) + 3, len(step.kernels(2, True)) + 5 + 4) == (
        19,
        35,
    )
    assert step.saved == transformer("llama3-1b-plain", 2, eager).saved


def test_compiled_gradients_come_together() -> None:
    """All gradients of a graph arrive at the end of its backward: one burst per block, or one per bucket."""
    assert moments_of_gradients(whole) == 1
    assert moments_of_gradients(bucketed) == 4


def moments_of_gradients(run: Callable[[Tape, Block, Tensor], Tensor]) -> int:
    m = load_model(Model(name="llama3-1b-plain"))
    t = Tape(0, Shared(), defaultdict(lambda: 1e-6))
    net = Transformer(t, m, range(1), True, True)
    moments: set[int] = set()

    def arrive(p: Tensor) -> None:
        moments.add(len(t.columns.names))

    for p in net.blocks[0].parameters:
        p.on_grad = arrive
    loss = aten.cross_entropy(t, net.forward(t, (2, 2048), lambda b, x: run(t, b, x)))
    t.backward(loss, Tensor(None, loss.shape))
    return len(moments)


def test_experts_run_as_written_between_compiled_graphs() -> None:
    """Attention and both norms are one graph, the residual sum behind the experts is an operator of its own."""
    compiled = transformer("moe8x-plain", 1, whole).kernels(2, False)
    written = transformer("moe8x-plain", 1, eager).kernels(2, False)
    before = words(
        "fused_norm mm mm mm fused_rope fused_rope attention_fwd fused_transpose mm fused_add_norm"
    )
    assert compiled[: len(before)] == before
    at = len(words(ATTENTION))
    assert written[:at] == words(ATTENTION)
    assert compiled[len(before) :] == written[at:]
    assert compiled[-1] == "add"


@given(
    st.lists(st.floats(1.0, 100.0 * MIB), min_size=1, max_size=8),
    st.floats(MIB, 50.0 * MIB),
)
def test_cut_keeps_order_and_closes_at_the_cap(sizes: list[float], cap: float) -> None:
    """Every unit once, in order; a group but the first is at its cap, and would not be without its first unit."""
    groups = cut(sizes, cap)
    assert [u for g in groups for u in g] == list(range(len(sizes)))
    for i, group in enumerate(groups[1:], 1):
        limit = MIB if i == len(groups) - 1 else cap
        assert (
            sum(sizes[u] for u in reversed(group))
            >= limit
            > sum(sizes[u] for u in reversed(group[1:]))
        )
    assert cut(sizes, None) == [list(range(len(sizes)))]
