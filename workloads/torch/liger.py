"""Liger's Triton kernels in the place of transformers' modules (linkedin/Liger-Kernel, src/liger_kernel/ops, 2026).

Norms, rotations, gated activations and the loss are one kernel each way instead of many operators. Gradients are
written in the place of what they are gradients of. The loss may have the head's product in it: logits are made part by
part, and each part's gradients at once, forward (fused_linear_cross_entropy.py). Times of the kernels were measured
(lab/cases/liger).
"""

from __future__ import annotations

import math

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.aten_products import multiply_sizes
from prestep.workloads.torch.tape import Tape, Tensor

NARROW, WIDE = 2, 4  # bytes of an element: in 16 bits, in 32 bits
#: Passes of a loss over its logits: they are read twice and their gradients written (cross_entropy.py).
LOSS_PASSES = 3


def rms_norm(t: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """LigerRMSNorm: keeps its input and a number a row; the input's gradient takes the place of the output's."""
    columns = x.shape[-1]
    rows = x.elements // columns
    t.cpu("triton_function")
    t.saves(3)
    t.launch(_kernel("rms_norm", (rows, columns), 2 * x.size))
    statistics = t.empty((rows,), WIDE)

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = x, statistics
        t.cpu("triton_function_backward")
        t.launch(_kernel("rms_norm_backward", (rows, columns), 3 * g.size))
        # One row of the weight's gradient for each multiprocessor, summed by PyTorch.
        t.cpu("elementwise_backward")
        t.launch(Kernel("sum", (weight.elements,)))
        return [g, t.empty(weight.shape, weight.itemsize)]

    return t.apply(t.empty(x.shape, x.itemsize), [x, weight], backward)


def rope(t: Tape, queries: Tensor, keys: Tensor) -> Tensor:
    """LigerRopeFunction: queries and keys by one kernel, in their place; returns the queries."""
    elements = queries.elements + keys.elements
    moved = queries.size + keys.size

    def turn(host: str) -> None:
        t.cpu(host)
        t.launch(_kernel("rope", (elements,), 2 * moved))

    turn("triton_function")

    def backward(g: Tensor) -> list[Tensor | None]:
        turn("triton_function_backward")
        return [g]

    return t.apply(queries.view(*queries.shape), [queries], backward)


def gated(t: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction: keeps both inputs, in whose place their gradients come."""
    shape = (gate.elements // gate.shape[-1], gate.shape[-1])
    t.cpu("triton_function")
    t.launch(_kernel("glu", shape, 3 * gate.size))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("triton_function_backward")
        t.launch(_kernel("glu_backward", shape, 5 * g.size))
        return [gate.view(*gate.shape), up.view(*up.shape)]

    return t.apply(t.empty(gate.shape, gate.itemsize), [gate, up], backward)


def cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    """The loss of logits that transformers has put in fp32; their gradients take their place, forward."""
    vocab, n = logits.shape[-1], logits.elements
    shape, itemsize = logits.shape, logits.itemsize
    t.cpu("elementwise")
    t.launch(Kernel("aten copy", (n,), "bf16>fp32", "", float((NARROW + WIDE) * n)))
    gradients = t.empty(shape, WIDE)
    t.cpu("triton_function")
    moved = LOSS_PASSES * gradients.size
    t.launch(_kernel("cross_entropy", (n // vocab, vocab), moved, "fp32"))

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        _multiplied(t, gradients)
        t.cpu("elementwise_backward")
        size = float((NARROW + WIDE) * n)
        t.launch(Kernel("aten copy", (n,), "fp32>bf16", "", size))
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), WIDE), [logits], backward)


def linear_cross_entropy(t: Tape, x: Tensor, head: Tensor) -> Tensor:
    """The head's product and the loss in parts of the tokens, forward with all gradients.

    The gradient of the head's weights is in 16 bits, to which each part's is added behind a cast to fp32: two passes
    over a tensor as large as the weights for every part.
    """
    vocab, hidden = head.shape
    tokens = x.elements // hidden
    of_input = _zeros(t, x)
    of_head = _zeros(t, head) if head.requires_grad else None
    # The numbers of targets that count: `.item()`.
    t.cpu("elementwise", 2)
    t.synchronize()
    for rows in parts(tokens, hidden, vocab):
        _part(t, rows, head, of_head)

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        # Whether the loss is divided by something: `torch.equal`.
        t.cpu("triton_function_backward")
        t.synchronize()
        gradients = [of_input] if of_head is None else [of_input, of_head]
        for gradient in gradients:
            _multiplied(t, gradient)
        return [of_input, of_head]

    return t.apply(t.empty((1,), WIDE), [x, head], backward)


def parts(tokens: int, hidden: int, vocab: int) -> list[int]:
    """Tokens of each part: as many as make logits about as large as all inputs, a power of two."""
    wanted = -(-tokens // -(-vocab // hidden))
    size: int = 2 ** math.ceil(math.log2(wanted))
    whole, rest = divmod(tokens, size)
    return [size] * whole + ([rest] if rest else [])


def _part(t: Tape, rows: int, head: Tensor, of_head: Tensor | None) -> None:
    """Logits of some tokens, their loss, and the gradients of inputs and weights from them."""
    vocab, hidden = head.shape
    t.cpu("view", 4)
    t.cpu("linear")
    multiply_sizes(t, rows, vocab, hidden, "nt")
    logits = t.empty((rows, vocab), NARROW)
    t.cpu("custom_function")
    t.launch(_kernel("cross_entropy", (rows, vocab), LOSS_PASSES * logits.size))
    t.cpu("linear")
    multiply_sizes(t, rows, hidden, vocab, "nn")
    t.cpu("elementwise")
    size = 2.0 * NARROW * rows * hidden
    t.launch(Kernel("aten copy", (rows * hidden,), bytes=size))
    if of_head is None:
        return
    t.cpu("linear")
    multiply_sizes(t, vocab, hidden, rows, "tn")
    n = of_head.elements
    narrow, wide = t.empty(of_head.shape, NARROW), t.empty(of_head.shape, WIDE)
    t.cpu("elementwise", 2)
    t.launch(Kernel("aten copy", (n,), "bf16>fp32", "", float((NARROW + WIDE) * n)))
    added = float((2 * NARROW + WIDE) * n)
    t.launch(Kernel("aten add", (n,), "bf16,fp32>bf16", "", added))
    del narrow, wide


def _zeros(t: Tape, like: Tensor) -> Tensor:
    """A gradient that is added to from zero."""
    t.cpu("elementwise")
    t.launch(Kernel("aten fill", (like.elements,), bytes=like.size))
    return t.empty(like.shape, like.itemsize, "gradients")


def _multiplied(t: Tape, gradient: Tensor) -> None:
    """A gradient times that of the loss, in its place: trainers divide a sum by the batch's number of targets."""
    t.cpu("elementwise_backward")
    dtype = "bf16" if gradient.itemsize == NARROW else "fp32"
    elements = gradient.elements
    t.launch(Kernel("aten mul", (elements,), dtype, "", 2 * gradient.size))


def _kernel(
    name: str, shape: tuple[int, ...], moved: float, dtype: str = "bf16"
) -> Kernel:
    """One of Liger's kernels, among the operations that were measured one by one."""
    return Kernel(f"aten liger_{name}", shape, dtype, "", float(moved))
