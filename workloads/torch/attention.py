"""Operators of an attention layer between its projections (symbolic, as in ``functional``)."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.torch.tape import Tape, Tensor

HALVES_BACKWARD = {"add": "", "mul": "strided_bwd", "neg": "strided"}


def rope(t: Tape, x: Tensor) -> Tensor:
    """Rotary embedding written with elementwise operators on the two halves of each head.

    ``x`` is (batch, heads, seq, head_dim), a transposed view of a projection's output.
    """
    half = x.elements // 2
    shape, itemsize = x.shape, x.itemsize
    t.cpu("view", 2)
    for kind in ("mul", "mul", "sub", "mul", "mul", "add"):
        t.cpu("elementwise")
        strided = "strided" if kind == "mul" else ""
        t.launch(Kernel(kind, (half,), layout=strided))
    # The four products and two sums are alive until the concatenation has been issued.
    temps = [t.empty((*shape[:-1], shape[-1] // 2), itemsize) for _ in range(2)]
    t.cpu("elementwise")
    t.launch(Kernel("cat", (2 * half,), layout="strided"))
    y = t.empty(shape, itemsize)
    del temps

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        t.cpu("view_backward", 4)
        for kind in ("mul", "mul", "neg", "mul", "add", "mul", "add"):
            t.cpu("elementwise_backward")
            t.launch(Kernel(kind, (half,), layout=HALVES_BACKWARD[kind]))
        t.cpu("elementwise_backward")
        t.launch(Kernel("cat", (2 * half,)))
        return [t.empty(shape, itemsize)]

    return t.apply(y, [x], backward)


def heads_view(
    t: Tape, x: Tensor, batch: int, seq: int, heads: int, head_dim: int
) -> Tensor:
    """``view(B, S, heads, head_dim).transpose(1, 2)``: no kernel forward.

    Backward, the gradient of a query or value comes back in another layout than the projection needs,
    which costs one copy unless it was already contiguous (``copies``).
    """
    t.cpu("view", 2)
    y = Tensor(x.storage, (batch, heads, seq, head_dim), x.itemsize)
    shape = x.shape

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        if not g.local or heads_last(
            t
        ):  # marked by the operator that wrote it heads-first
            return [Tensor(g.storage, shape, g.itemsize)]
        t.launch(Kernel("copy", (g.elements,), layout="strided"))
        return [t.empty(shape, g.itemsize)]

    return t.apply(y, [x], backward)


def heads_last(t: Tape) -> bool:
    """Whether attention takes heads behind tokens, as projections make them: their views need no copies."""
    return t.choices is not None and t.choices.attention == "triton"


def attention(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal scaled-dot-product attention by cuDNN: saves q, k, v, the output and one float per row."""
    if heads_last(t):
        return triton_attention(t, q, k, v)
    b, h, s, d = q.shape
    kv = k.shape[1]
    shape = (b, h, kv, s, d)
    flops = 2.0 * b * h * s * s * d  # two products, half of them masked
    t.cpu("attention")
    t.saves()
    t.launch(Kernel("memset", (4,), bytes=4.0))
    moved = 2 * q.size + k.size + v.size
    prefix = (
        "flash2_" if t.choices is not None and t.choices.attention == "flash2" else ""
    )
    t.launch(Kernel(f"{prefix}attention_fwd", shape, bytes=moved, flops=flops))
    out = t.empty(q.shape, q.itemsize)
    lse = t.empty((b, h, s), 4)
    saved = out.view(*out.shape)
    saved.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("attention_backward")
        _ = (saved, lse, g)
        t.launch(Kernel("memset", (4,), bytes=4.0))
        dq_acc = t.empty(q.shape, 4)
        t.launch(
            Kernel(f"{prefix}attention_bwd", shape, bytes=2 * moved, flops=2.5 * flops)
        )
        grads: list[Tensor | None] = []
        expanded = [t.empty(q.shape, q.itemsize) for _ in range(2)] if kv != h else []
        for x in (q, k, v):
            grads.append(t.empty(x.shape, x.itemsize))
        del dq_acc, expanded
        for grad in (
            grads
        ):  # in the layout of q, k and v: the transposes before them need no copy back
            if grad is not None:
                grad.local = False
        return grads

    return t.apply(out, [q, k, v], backward)


def triton_attention(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by FlashAttention in Triton (2022): heads stay behind tokens, so nothing is transposed.

    Backward first sums output times gradient for each row, and adds the queries' gradient up in fp32, which is zeroed
    before and copied after (flash_attn_triton.py, _flash_attn_backward).
    """
    b, h, s, d = q.shape
    shape, flops = (b, h, k.shape[1], s, d), 2.0 * b * h * s * s * d
    moved = 2 * q.size + k.size + v.size
    t.cpu("attention")
    t.saves()
    t.launch(Kernel("triton_attention_fwd", shape, bytes=moved, flops=flops))
    out = t.empty(q.shape, q.itemsize)
    lse = t.empty((b, h, s), 4)
    saved = out.view(*out.shape)
    saved.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("attention_backward")
        _ = (saved, lse, g)
        sums = t.empty(q.shape, 4)
        t.launch(Kernel("fused", (q.elements,), bytes=2 * q.size))
        t.launch(Kernel("fused", (q.elements,), bytes=4.0 * q.elements))
        t.launch(
            Kernel("triton_attention_bwd", shape, bytes=2 * moved, flops=2.5 * flops)
        )
        t.launch(Kernel("fused", (q.elements,), bytes=6.0 * q.elements))
        grads: list[Tensor | None] = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
        del sums
        for grad in grads:
            if grad is not None:
                grad.local = False
        return grads

    return t.apply(out, [q, k, v], backward)


def split_joined(t: Tape, joined: Tensor, widths: list[int]) -> list[Tensor]:
    """Views of a joined projection's output; backward puts their gradients together by one copy."""
    parts = [
        Tensor(None, (*joined.shape[:-1], width), joined.itemsize) for width in widths
    ]
    shape, itemsize = joined.shape, joined.itemsize
    seen: list[Tensor] = []

    def first(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", len(parts))
        t.launch(Kernel("cat", (joined.elements,), bytes=2 * joined.size))
        seen.clear()
        return [t.empty(shape, itemsize)]

    def other(g: Tensor) -> list[Tensor | None]:
        seen.append(g)
        return [None]

    t.cpu("view", len(parts))
    held = joined.storage
    main = t.apply(Tensor(held, parts[0].shape, itemsize), [joined], first)
    return [
        main,
        *(t.apply(Tensor(held, p.shape, itemsize), [main], other) for p in parts[1:]),
    ]


def merge_heads(t: Tape, x: Tensor) -> Tensor:
    """``transpose(1, 2).reshape(B, S, -1)``: one copy forward, none backward."""
    b, h, s, d = x.shape
    if heads_last(t):
        t.cpu("view", 2)
        return x.view(b, s, h * d)
    t.cpu("view", 2)
    t.cpu("elementwise")
    t.launch(Kernel("copy", (x.elements,), layout="strided"))
    shape = x.shape

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        return [Tensor(g.storage, shape, g.itemsize)]

    return t.apply(t.empty((b, s, h * d), x.itemsize), [x], backward)
