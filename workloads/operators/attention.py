"""Fused attention by backend: cuDNN, FlashAttention, memory-efficient. The one in separate operations is no family.

What its operators are called with is in native_functions.yaml and tools/autograd/derivatives.yaml, where their results
lie in aten/src/ATen/native/transformers/cuda.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from prestep.sim.graph.kernel import ORDERED, Kernel
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.tensors import (
    argument,
    base,
    contiguous,
    launched,
    strides_of,
    tensor,
)


@dataclass(frozen=True)
class Call:
    """Where an attention operation has what decides its time.

    Attributes
    ----------
    query
        Place of the query among the arguments; key and value follow.
    bias
        Place of a bias over the scores, a mask's too; None where there is none.
    dropout
        Place of the share of scores that are dropped.
    causal
        Which flag among the arguments says that it is causal.
    products
        Matrix products over the scores.
    """

    query: int
    bias: int | None
    dropout: int
    causal: int
    products: int


CALLS = {
    "_scaled_dot_product_cudnn_attention": Call(0, 3, 5, 1, 2),
    "_scaled_dot_product_efficient_attention": Call(0, 3, 5, 1, 2),
    "_scaled_dot_product_flash_attention": Call(0, None, 3, 0, 2),
    "_scaled_dot_product_cudnn_attention_backward": Call(1, 8, 13, 0, 5),
    "_scaled_dot_product_efficient_attention_backward": Call(1, 4, 9, 0, 5),
    "_scaled_dot_product_flash_attention_backward": Call(1, None, 10, 0, 5),
}


#: Shares of the scores below which a mask is like a causal one.
CAUSAL_BELOW = 0.75


def fused(operation: Operation) -> tuple[Kernel, ...]:
    """Scores, softmax and values, or their gradients; (batch, heads, key heads, queries, keys, head's width)."""
    call = CALLS[operation.name.split(".")[1]]
    query, key = tensor(operation, call.query), tensor(operation, call.query + 1)
    if query is None or key is None or len(query.shape) != 4:
        return launched(operation, (1,))
    batch, heads, length, dim = query.shape
    kv_heads, kv_length = key.shape[1:3]
    causal = _causal(operation, call)
    scores = float(batch * heads * length * kv_length) * (0.5 if causal else 1.0)
    value = tensor(operation, call.query + 2)
    narrow = value.shape[-1] if value is not None else dim
    shape = (batch, heads, kv_heads, length, kv_length, _width(call, dim, narrow))
    layout = "_".join(_marks(operation, call, causal) + ["latent"] * (narrow != dim))
    flops = 2.0 * scores * _widths(call, dim, narrow)
    return launched(operation, shape, layout, query.dtype, flops=flops)


def _widths(call: Call, query: int, value: int) -> int:
    """Widths of all products together: scores are as wide as queries, and weigh values."""
    of_values = call.products // 2
    return (call.products - of_values) * query + of_values * value


def _width(call: Call, query: int, value: int) -> int:
    """Of heads whose products are as wide on average."""
    return round(_widths(call, query, value) / call.products)


def flexible(operation: Operation) -> tuple[Kernel, ...]:
    """`flex_attention`: the share of the scores that its mask leaves is its last argument."""
    at = 1 if operation.name.split(".")[1].endswith("backward") else 0
    query, key = tensor(operation, at), tensor(operation, at + 1)
    share = operation.arguments[-1]
    if query is None or key is None or not isinstance(share, float):
        return launched(operation, (1,))
    batch, heads, length, dim = query.shape
    kv_heads, kv_length = key.shape[1:3]
    flops = 2.0 * (5 if at else 2) * batch * heads * length * kv_length * dim * share
    shape = (batch, heads, kv_heads, length, kv_length, dim)
    layout = "causal" if share < CAUSAL_BELOW else ""
    return launched(operation, shape, layout, query.dtype, flops=flops)


def _marks(operation: Operation, call: Call, causal: bool) -> list[str]:
    """What sets a kernel apart from the plain one."""
    dropout = argument(operation, call.dropout, "dropout_p")
    marks = {
        "causal": causal,
        "mask": _masked(operation, call),
        "dropout": isinstance(dropout, float) and dropout > 0,
        ORDERED: bool(dict(operation.options).get("deterministic")),
    }
    return [mark for mark, present in marks.items() if present]


def _causal(operation: Operation, call: Call) -> bool:
    named = dict(operation.options).get("is_causal")
    flags = [value for value in operation.arguments if isinstance(value, bool)]
    if isinstance(named, bool):
        return named
    return len(flags) > call.causal and flags[call.causal]


def _masked(operation: Operation, call: Call) -> bool:
    place = call.bias
    return place is not None and isinstance(
        argument(operation, place, "attn_bias"), Operand
    )


def scratch(operation: Operation) -> float:
    """Bytes of a fused backward pass: the queries' gradient in fp32, and grouped keys and values for all heads.

    Memory-efficient attention sums rows first, and adds up where it returns.
    """
    name = base(operation)
    if not name.endswith("_attention_backward"):
        return 0.0
    _, query, key, *_ = operation.operands
    *rows, width = query.shape
    if EFFICIENT in name:
        return 4.0 * prod(rows)
    expanded = 2.0 * query.bytes if key.shape[1] != query.shape[1] else 0.0
    return 4.0 * prod(rows) * width + expanded


RULES = {
    **dict.fromkeys(CALLS, fused),
    **dict.fromkeys(("flex_attention", "flex_attention_backward"), flexible),
}

EFFICIENT = "efficient"  # memory-efficient attention
NUMBER = Operand("int64", ())


def ordered_as(like: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in the order of another's; () where that is the usual one."""
    steps = strides_of(like)
    order = sorted(range(len(shape)), key=lambda at: (steps[at], -at))
    strides, step = [0] * len(shape), 1
    for at in order:
        strides[at] = step
        step *= shape[at]
    return () if tuple(strides) == contiguous(shape) else tuple(strides)


def heads_behind(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (batch, heads, tokens, width) where heads lie behind tokens."""
    _, heads, tokens, width = shape
    return heads * tokens * width, width, heads * width, 1


@dataclass(frozen=True)
class Fused:
    """A call of ``scaled_dot_product_attention`` by "cudnn", "flash" or "efficient", and that of its gradients.

    `q`, `k` and `v` are (batch, heads, tokens, width) each; `keeps`: the sums of rows are kept for a backward pass.
    Without `causal` every token sees all, which is what the operators do if nothing is said; `mask` is added to scores.
    """

    backend: str
    q: Operand
    k: Operand
    v: Operand
    keeps: bool
    causal: bool = True
    mask: Operand | None = None

    @property
    def name(self) -> str:
        return f"aten._scaled_dot_product_{self.backend}_attention"

    @property
    def _random(self) -> tuple[Operand, Operand]:
        """Seed and offset of dropout."""
        if self.backend == "flash":
            return Operand("uint64", (2,)), Operand("uint64", ())
        return NUMBER, NUMBER

    @property
    def _sums(self) -> Operand:
        """A number for each row: cuDNN's with a dimension more, memory-efficient attention's in tiles of 32 rows."""
        *rows, tokens, _ = self.q.shape
        if self.backend == EFFICIENT:
            return Operand("fp32", (*rows, -(-tokens // 32) * 32))
        last = (1,) if self.backend == "cudnn" else ()
        return Operand("fp32", (*rows, tokens, *last))

    def forward(self, y: Operand) -> Operation:
        """With the output ``y``."""
        results = y, self._sums, *self._random
        if self.backend == "flash":
            debug = Operand(y.dtype, (0,))
            plain = self.q, self.k, self.v, *self._how
            return Operation(f"{self.name}.default", plain, (), (*results, debug))
        plain = self.q, self.k, self.v, self.mask, self.keeps, *self._how
        return Operation(f"{self.name}.default", plain, (), results)

    @property
    def _how(self) -> tuple[float, bool] | tuple[()]:
        """Share that is dropped, and causal, where that is not what nothing says."""
        return (0.0, True) if self.causal else ()

    def backward(
        self, g: Operand, y: Operand, grads: Sequence[Operand], ordered: bool = False
    ) -> Operation:
        """With the gradient of the output ``y``, and those of queries, keys and values; `ordered`: in one order."""
        options = (("deterministic", True),) if ordered else ()
        tensors, random = (self.q, self.k, self.v), self._random
        tokens = self.q.shape[2], self.k.shape[2]
        name = f"{self.name}_backward.default"
        kept = (y, self._sums)
        if self.backend == EFFICIENT:
            wanted = True, True, True, False
            last = (True,) if self.causal else ()
            plain = g, *tensors, self.mask, *kept, *random, 0.0, wanted, *last
            return Operation(name, plain, options, tuple(grads))
        if self.backend == "flash":
            how = *tokens, 0.0, self.causal
            packed = g, *tensors, *kept, None, None, *how, *random
            return Operation(name, packed, options, tuple(grads))
        beside = *random, self.mask, None, None, *tokens, 0.0, self.causal
        return Operation(name, (g, *tensors, *kept, *beside), options, tuple(grads))

    def output_strides(self, q: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the output: as queries lie, but for memory-efficient attention."""
        if self.backend == EFFICIENT:
            return heads_behind(shape)
        return ordered_as(q, shape)
