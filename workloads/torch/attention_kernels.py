"""Attention by no fused operator of PyTorch: its own separate operations, and FlashAttention in Triton (2022)."""

from __future__ import annotations

from math import sqrt

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators.attention import heads_behind
from prestep.workloads.torch import aten, indexing
from prestep.workloads.torch.aten_products import matmul
from prestep.workloads.torch.indexing import hidden_keys, made
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor
from prestep.workloads.torch.written_out import WIDE, widened


def in_operations(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """Attention where no fused kernel takes the call: every score is written, and its share of its row is kept.

    It computes in fp32. Groups of keys are copied for their heads; one key of all heads is repeated by products.
    Source: aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
    """
    narrow = q.itemsize if q.itemsize < WIDE else 0
    if narrow:
        q, k, v = (widened(t, x) for x in (q, k, v))
    root = sqrt(
        1 / sqrt(q.shape[-1])
    )  # both factors of a score are scaled, so that none overflows
    q = aten.mul_number(t, q, root, "mul.Scalar")
    hidden = later_keys(t, q.shape[2], k.shape[2], q.itemsize) if causal else mask
    if k.shape[1] > 1:
        k, v = (for_every_head(t, x, q.shape[1]) for x in (k, v))
    turned = aten.mul_number(t, aten.transpose(t, k, 2, 3), root, "mul.Scalar")
    del k
    scores = matmul(t, q, turned)
    del q, turned
    if hidden is not None:
        y = aten.over(t, "add.Tensor", scores, hidden)
        scores = t.apply(y, [scores], lambda g: [g])
        del y
    shares = indexing.softmax(t, scores, hidden=True)
    del scores
    if not narrow:
        return matmul(t, shares, v)
    # The shares are a result, too, which the caller drops.
    dropped = aten.over(t, "_to_copy.default", shares, itemsize=narrow)
    y = aten.to(t, matmul(t, shares, v), narrow)
    del dropped
    return y


def of_one_key(t: Tape, joined: Tensor, heads: int) -> list[Tensor]:
    """Queries, keys and values by head as Falcon takes them from one projection (modeling_falcon.py, _split_heads)."""
    batch, tokens, width = joined.shape
    whole = aten.reshape(t, joined, batch, tokens, heads + 2, width // (heads + 2))
    parts = [aten.part(t, whole, 0, -2, 2), *(indexing.single(t, whole) for _ in "kv")]
    return [aten.transpose(t, x, 1, 2) for x in parts]


def later_keys(t: Tape, queries: int, keys: int, itemsize: int) -> Tensor:
    """What is added to scores: minus infinity where the key comes later than the query."""
    shape, kind, layout = (queries, keys), DTYPES[itemsize], "torch.strided"
    with t.no_grad():
        ones = made(
            t, "ones.default", (shape,), shape, "bool", dtype="bool", layout=layout
        )
        seen = made(t, "tril.default", (ones,))
        del ones
        low = made(t, "scalar_tensor.default", ("-inf",), (), kind, dtype=kind)
        zero = made(
            t, "scalar_tensor.default", (0.0,), (), kind, dtype=kind, layout=layout
        )
        return made(t, "where.self", (seen, low, zero), None, kind)


def window_mask(t: Tape, tokens: int) -> Tensor:
    """What is added to scores where a query sees some tokens before it alone: the model's mask, in the scores' type."""
    seen = t.table("window", (1, 1, tokens, tokens), 1)
    seen.dtype = "bool"
    return hidden_keys(t, seen)


def with_sinks(t: Tape, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Attention as transformers writes gpt-oss's: a learned score of each head lies beside those of the keys.

    Its mask hides what is outside a window, too (models/gpt_oss/modeling_gpt_oss.py, eager_attention_forward).
    """
    batch, heads, tokens, width = q.shape
    k, v = (for_every_head(t, x, heads) for x in (k, v))
    scores = matmul(t, q, aten.transpose(t, k, 2, 3))
    del q, k
    scores = aten.mul_number(t, scores, width**-0.5)
    hidden = t.table("hidden", (1, 1, tokens, tokens), scores.itemsize)
    y = aten.over(t, "add.Tensor", scores, hidden)
    scores = t.apply(y, [scores], lambda g: [g])
    del y
    row = aten.reshape(t, sinks, 1, heads, 1, 1)
    t.cpu("view")
    own = aten.view(row, (batch, heads, tokens, 1), (0, 1, 0, 1))
    own = t.apply(own, [row], lambda g: [aten.sum_to(t, g, (1, heads, 1, 1))])
    scores = aten.cat(t, [scores, own])
    scores = aten.sub(t, scores, indexing.highest(t, scores))
    shares = indexing.softmax(t, scores)
    del scores
    return matmul(t, aten.part(t, shares, 0, -1), v)


def kernel_of(t: Tape, q: Tensor, k: Tensor, v: Tensor, way: str) -> Kernel:
    """Its kernel of a pass, whose products leave out what is masked: half; backward five of them, forward two."""
    heads, width = q.shape[1], q.shape[-1]
    samples, tokens = t.documents(q.shape[0], q.shape[2])
    passes, products = (2, 5) if way == "bwd" else (1, 2)
    shape = (samples, heads, k.shape[1], tokens, width)
    moved = passes * (2 * q.size + k.size + v.size)
    flops = float(samples * heads * tokens**2 * products * width)
    return Kernel(f"triton_attention_{way}", shape, bytes=moved, flops=flops)


def gradients(g: Tensor, t: Tape, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Triton's backward (flash_attn_triton.py, _flash_attn_backward).

    It first sums output times gradient for each row, and adds the queries' gradient up in fp32, which is zeroed before
    and copied after.
    """
    sums = t.empty(q.shape, 4)
    t.cpu("triton_function_backward")
    t.launch(Kernel("fused", (q.elements,), bytes=2 * q.size))
    t.launch(Kernel("fused", (q.elements,), bytes=4.0 * q.elements))
    t.launch(kernel_of(t, q, k, v, "bwd"))
    t.launch(Kernel("fused", (q.elements,), bytes=6.0 * q.elements))
    grads = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
    for grad in grads:
        grad.strides = heads_behind(grad.shape)
    del sums
    return grads


def for_every_head(t: Tape, x: Tensor, heads: int) -> Tensor:
    """Keys or values of a group copied for each of its heads, as torchtitan's `repeat_kv` does."""
    batch, groups, length, width = x.shape
    if groups == heads:
        return x
    y = indexing.repeated(t, x, (batch, groups, 1, length, width), heads // groups)
    return aten.reshape(t, y, batch, heads, length, width)
