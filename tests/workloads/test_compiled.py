"""Compiled blocks launch the fused kernels that PyTorch's traces show, cut into DDP's buckets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from prestep.workloads.torch import aten
from prestep.workloads.torch.again import Again
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.compiled import compiled_block, cut
from prestep.workloads.torch.compiled_region import Region
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer
from tests.executed import executed
from tests.workloads.recorded import (
    MIB,
    STEPS,
    Step,
    bucketed,
    eager,
    transformer,
    whole,
    words,
)
from tests.workloads.small import EXPERTS, ops, scenario

REDUCTION, POINTWISE = "fused_reduction", "fused_pointwise"
ATTENDS = "_scaled_dot_product_cudnn_attention"


def test_compiled_block() -> None:
    """A block compiled as one graph launches what trace 8b-single-b1-compiled shows.

    Forward a norm, the products, two rotations, attention, heads behind tokens, the sum with the second norm, the gate
    and the sum; backward norms of 2,048 rows have a kernel along rows each, and one across for both, summed by two more.
    """
    step = STEPS["llama compiled"]()
    assert step.kinds(2, False) == words(
        f"{REDUCTION} mm mm mm {POINTWISE} {POINTWISE} {ATTENDS} {POINTWISE} mm {REDUCTION} "
        f"mm mm {POINTWISE} mm {POINTWISE}"
    )
    kinds = Counter(step.kinds(2, True))
    norms = {REDUCTION: 3, "fused_sum": 2}
    others = {"mm": 2 * 7, POINTWISE: 3, f"{ATTENDS}_backward": 1}
    assert kinds == norms | others
    eager_step = transformer("llama3-8b-plain", 1, eager)
    assert (
        eager_step.saved - step.saved == 4 * 2048 * 14336 * 2
    )  # the activation before the product, in 4 blocks


@pytest.mark.parametrize(
    "batch, layouts",
    [
        (1, "tn nn nn nn nn tn tn nn nn nn tn tn tn tn"),
        (8, "tn nn tn nn tn nn nn nn nn nn tn tn tn tn"),
    ],
)
def test_products_of_backward_in_the_order_that_needs_the_least_memory(
    batch: int, layouts: str
) -> None:
    """As a profiler saw them (PyTorch 2.11, H200): with 2,048 tokens most gradients of weights ("tn") come last.

    With 16,384 those of the gate and up free more than they take; the others wait for both norms' weights.
    """
    step = transformer("llama3-8b-plain", batch, whole)
    assert [each.layout for each in step.products(2)] == words(layouts)
    assert step.kinds(2, True).count("fused_sum") == 2


def test_compiled_block_in_buckets() -> None:
    """Under DDP the 1b block is four graphs (trace 1b-ddp4-b2-compiled): activation and product are kernels of their own.

    Norms of 4,096 rows of 2,048 are summed both ways by one kernel; a gradient that two graphs have is added between.
    """
    step = STEPS["llama compiled in buckets"]()
    assert step.kinds(2, False) == words(
        f"{REDUCTION} mm mm mm {POINTWISE} {POINTWISE} {ATTENDS} {POINTWISE} mm {REDUCTION} "
        f"mm {POINTWISE} mm {POINTWISE} mm {POINTWISE}"
    )
    kinds = Counter(step.kinds(2, True))
    norms = {REDUCTION: 2, "fused_sum": 2, "add": 1}
    others = {"mm": 2 * 7, POINTWISE: 4, f"{ATTENDS}_backward": 1}
    assert kinds == norms | others
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
    loss = aten.cross_entropy(
        t, net.outputs(t, (2, 2048), lambda b, x: run(t, b, x))[0]
    )
    t.backward(loss, Tensor(None, loss.shape))
    return len(moments)


def test_experts_that_a_rank_has_are_compiled_with_their_block() -> None:
    """One graph each way: no activation nor sum of its own, as many products, and the choice's sort as written."""
    compiled = transformer("moe8x-plain", 1, whole)
    written = transformer("moe8x-plain", 1, eager)
    kinds, before = (Counter(step.kinds(2, False)) for step in (compiled, written))
    assert not kinds.keys() & {"silu", "add", "_softmax"}
    assert {name: kinds[name] for name in ("mm", "sort", ATTENDS)} == {
        name: before[name] for name in ("mm", "sort", ATTENDS)
    }


def test_spread_experts_run_as_written_between_compiled_graphs() -> None:
    """Attention and both norms are one graph, the residual sum behind the experts is an operator of its own."""
    spread = {"dp": 2, "ep": 2, "data_parallel": "ddp"}
    compiled, written = (
        [op.kernel.kind for op in ops(low) if op.kernel and op.phase == "forward"]
        for low in (
            executed(scenario(EXPERTS, {"framework": name}, **spread), 1).lowered
            for name in ("pytorch-compiled", "pytorch-eager")
        )
    )
    for kind in ("aten silu", "aten sort", "aten index"):
        assert compiled.count(kind) == written.count(kind)
    assert 0 < compiled.count("aten add") < written.count("aten add")


def test_nothing_is_traced_for_a_block_like_one_before() -> None:
    """Blocks alike share their graphs; one whose weights are frozen has others, with products for no weight."""
    step = STEPS["llama compiled"]()
    regions = [each for each in step.tape.compiled.values() if isinstance(each, Region)]
    assert len(regions) == 1


@pytest.mark.parametrize("products", [False, True])
def test_checkpointing_within_a_graph_keeps_its_input_and_what_is_listed(
    products: bool,
) -> None:
    """Full: the input alone; by operator: every other product and attention beside it, which do not run again."""
    again = Again(full=not products, products=products)
    step = transformer(
        "llama3-8b-plain", 1, lambda t, b, x: compiled_block(t, b, x, None, again)
    )
    plain = STEPS["llama compiled"]()
    tokens, hidden, kv, ffn, heads = 2048, 4096, 1024, 14336, 32
    fewer = 4 if products else 0  # q, v, the gate's, the last: of seven
    kinds = Counter(step.kinds(2, True))
    assert kinds["mm"] - Counter(plain.kinds(2, True))["mm"] == 7 - 1 - 3 * products
    if products:  # as a profiler saw them (PyTorch 2.11, H200)
        others = {"mm": 17, POINTWISE: 6, f"{ATTENDS}_backward": 1}
        assert kinds == others | {REDUCTION: 4, "fused_sum": 2}
    kept = 2 * tokens * hidden
    if products:
        kept += 2 * tokens * (hidden + kv + ffn + hidden) + 4 * tokens * heads
    # Behind the blocks a norm and the loss have theirs.
    behind = Counter(plain.kinds(-1, False))
    assert fewer in (0, 4) and behind == Counter(step.kinds(-1, False))
    assert plain.saved - step.saved == 4 * (kept_of(plain) - kept)


def kept_of(plain: Step) -> int:
    """Bytes that a block keeps without checkpointing: by the formula of its tensors."""
    tokens, hidden, kv, ffn, heads = 2048, 4096, 1024, 14336, 32
    rows = 2 * 4 * tokens + 4 * tokens * heads  # statistics of norms and of attention
    wide = 7 * hidden + 2 * kv  # x, n1, q, out, merged, x2, n2; k and v
    return 2 * tokens * (wide + 3 * ffn) + rows


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
