"""Operators of an attention layer between its projections (symbolic, as in ``functional``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.exchanges import torch_context
    from prestep.workloads.torch import written_out

# Kernels of a rotary embedding on the halves of each head, with their layouts; a concatenation follows.
ROPE_FORWARD = (
    ("mul", "strided"),
    ("mul", "strided"),
    ("sub", ""),
    ("mul", "strided"),
    ("mul", "strided"),
    ("add", ""),
)
ROPE_BACKWARD = (
    ("mul", "strided_bwd"),
    ("mul", "strided_bwd"),
    ("neg", "strided"),
    ("mul", "strided_bwd"),
    ("add", ""),
    ("mul", "strided_bwd"),
    ("add", ""),
)


def rope(t: Tape, x: Tensor) -> Tensor:
    """Rotary embedding written with elementwise operators on the two halves of each head.

    ``x`` is (batch, heads, seq, head_dim), a transposed view of a projection's output.
    """
    if t.written_out:
        return written_out.rope(t, x)
    half = x.elements // 2
    shape, itemsize = x.shape, x.itemsize
    t.cpu("view", 2)
    _launch_halves(t, "elementwise", ROPE_FORWARD, half)
    # The four products and two sums are alive until the concatenation has been issued.
    temps = [t.empty((*shape[:-1], shape[-1] // 2), itemsize) for _ in range(2)]
    t.cpu("elementwise")
    t.launch(Kernel("cat", (2 * half,), layout="strided"))
    y = t.empty(shape, itemsize)
    del temps

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        t.cpu("view_backward", 4)
        _launch_halves(t, "elementwise_backward", ROPE_BACKWARD, half)
        t.cpu("elementwise_backward")
        t.launch(Kernel("cat", (2 * half,)))
        return [t.empty(shape, itemsize)]

    return t.apply(y, [x], backward)


def _launch_halves(
    t: Tape, operation: str, kernels: Sequence[tuple[str, str]], elements: int
) -> None:
    """Kernels on halves of heads, each launched by a host operation."""
    for kind, layout in kernels:
        t.cpu(operation)
        t.launch(Kernel(kind, (elements,), layout=layout))


def heads_view(
    t: Tape, x: Tensor, batch: int, seq: int, heads: int, head_dim: int
) -> Tensor:
    """``view(B, S, heads, head_dim).transpose(1, 2)``: no kernel forward.

    Backward, the gradient of a query or value comes back in another layout than the projection needs,
    which costs one copy unless it was already contiguous (``copies``).
    """
    if t.written_out and not heads_last(t):
        return written_out.heads(t, x, heads, head_dim)
    t.cpu("view", 2)
    y = Tensor(x.storage, (batch, heads, seq, head_dim), x.itemsize)
    shape = x.shape

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        # `local` is marked by the operator that wrote the gradient heads-first.
        if not g.local or heads_last(t):
            return [Tensor(g.storage, shape, g.itemsize)]
        t.launch(Kernel("copy", (g.elements,), layout="strided"))
        return [t.empty(shape, g.itemsize)]

    return t.apply(y, [x], backward)


def heads_last(t: Tape) -> bool:
    """Whether attention takes heads behind tokens, as projections make them: their views need no copies."""
    return t.choices is not None and t.choices.attention == "triton"


# Keys of a kernel's tile: every tile that a query touches is computed.
TILE = 128


def in_window(samples: int, tokens: int, window: int) -> tuple[int, int]:
    """Samples and tokens of causal attention with as many scores as one that looks back `window` tokens (0: all).

    Those are causal blocks along the diagonal, no smaller than two tiles (as in Megatron's layers).
    """
    block = max(window, 2 * TILE)
    if not window or block >= tokens:
        return samples, tokens
    return max(1, round(samples * (2 * tokens / block - 1))), block


def attention(t: Tape, q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """Causal attention over this rank's heads; ranks that exchange heads for tokens have all tokens meanwhile.

    `window`: tokens that a query looks back, 0: all.
    """
    if t.heads is None:
        return _attention(t, q, k, v, window)
    q, k, v = (torch_context.to_heads(t, x, t.heads) for x in (q, k, v))
    return torch_context.to_tokens(t, _attention(t, q, k, v, window), t.heads)


def _attention(t: Tape, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Scaled-dot-product attention, by cuDNN if nothing is said: saves q, k, v, output and a float per row."""
    if heads_last(t):
        return triton_attention(t, q, k, v)
    if t.plain:
        return _in_32_bits(t, q, k, v)
    flash2 = t.choices is not None and t.choices.attention == "flash2"
    name = "flash2_attention" if flash2 else "attention"
    work = _Work.of(t, q, k, v, name, window)
    zeros = Kernel("memset", (4,), bytes=4.0)
    return _local_or_ring(t, q, k, v, (zeros, work.forward), partial(_backward, work))


def _local_or_ring(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernels: Sequence[Kernel],
    gradients: torch_context.Gradients,
) -> Tensor:
    """Attention to this rank's keys or, with context parallelism, to those of all ranks block by block."""
    t.cpu("attention")
    t.saves()
    if t.ring is None:
        for kernel in kernels:
            t.launch(kernel)
        return _attended(t, q, k, v, gradients)
    ring, shapes = t.ring, torch_context.Shapes.of(q, k, v)
    ring.forward(t, shapes, kernels)

    def around(t: Tape, *tensors: Tensor) -> list[Tensor]:
        q, k, v = tensors
        return ring.backward(t, shapes, (q, k, v), gradients)

    return _attended(t, q, k, v, around)


def _backward(work: _Work, t: Tape, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """cuDNN's backward: the queries' gradient is added up in fp32; grouped keys are expanded to all heads."""
    t.launch(Kernel("memset", (4,), bytes=4.0))
    accumulator = t.empty(q.shape, 4)
    t.launch(work.backward)
    grouped = k.shape[1] != q.shape[1]
    expanded = [t.empty(q.shape, q.itemsize) for _ in range(2)] if grouped else []
    grads = [_gradient_of(t, x) for x in (q, k, v)]
    del accumulator, expanded
    return grads


def _gradient_of(t: Tape, x: Tensor) -> Tensor:
    """A gradient in the layout of what it is of."""
    grad = t.empty(x.shape, x.itemsize)
    grad.strides = x.strides
    return grad


def _in_32_bits(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The memory-efficient kernel, the only fused one for fp32; it knows no groups, so all heads get their keys."""
    k, v = (_for_every_head(t, x, q.shape[1]) for x in (k, v))
    work = _Work.of(t, q, k, v, "attention")
    gradients = partial(_efficient_backward, work)
    return _local_or_ring(t, q, k, v, (work.forward,), gradients)


def _efficient_backward(
    work: _Work, t: Tape, q: Tensor, k: Tensor, v: Tensor
) -> list[Tensor]:
    """Sums of rows first; gradients are added up where they are returned, being fp32 themselves."""
    sums = t.empty(q.shape[:-1], 4)
    t.launch(work.backward)
    grads = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
    del sums
    return grads


def _for_every_head(t: Tape, x: Tensor, heads: int) -> Tensor:
    """Keys or values of a group copied for each of its heads, as torchtitan's `repeat_kv` does."""
    b, groups, s, d = x.shape
    if groups == heads:
        return x
    y = t.empty((b, heads, s, d), x.itemsize)
    shape, itemsize, moved = x.shape, x.itemsize, x.size + y.size
    t.cpu("view", 2)
    t.cpu("elementwise")
    t.launch(Kernel("copy", (y.elements,), layout="row", bytes=moved))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        t.launch(Kernel("sum", (g.elements,), bytes=moved))
        grad = t.empty(shape, itemsize)
        grad.local = False
        return [grad]

    return t.apply(y, [x], backward)


@dataclass(frozen=True)
class Widths:
    """Of a head's queries and keys, and of its values, which latent attention has narrower.

    A fused kernel is that of heads as wide as its products are on average (Megatron's `mla.py` has the same).
    """

    query: int
    value: int

    @property
    def forward(self) -> int:
        """Scores are as wide as queries, and weigh values."""
        return (self.query + self.value) // 2

    @property
    def backward(self) -> int:
        """Three of five products are as wide as queries, two as values."""
        return round((3 * self.query + 2 * self.value) / 5)

    def products(self, backward: bool) -> int:
        """Widths of all products together."""
        return 3 * self.query + 2 * self.value if backward else self.query + self.value


def attention_kernel(
    name: str,
    heads: int,
    groups: int,
    samples: int,
    tokens: int,
    widths: Widths,
    moved: float,
) -> Kernel:
    """A causal attention kernel, whose products leave out what is masked: half. `moved`: its bytes."""
    backward = name.endswith("bwd")
    width = widths.backward if backward else widths.forward
    flops = float(samples * heads * tokens**2 * widths.products(backward))
    shape = (samples, heads, groups, tokens, width)
    latent = widths.query != widths.value and not name.startswith("flash2")
    layout = "latent" if latent else ""
    return Kernel(name, shape, layout=layout, bytes=moved, flops=flops)


@dataclass(frozen=True)
class _Work:
    """The two kernels of an attention."""

    forward: Kernel
    backward: Kernel

    @classmethod
    def of(
        cls, t: Tape, q: Tensor, k: Tensor, v: Tensor, name: str, window: int = 0
    ) -> _Work:
        """Kernels `name`_fwd and `name`_bwd; backward moves twice the bytes, and computes five products for two."""
        heads = q.shape[1]
        widths = Widths(q.shape[-1], v.shape[-1])
        moved = q.size + k.size + v.size + q.size * widths.value / widths.query
        seen = in_window(*t.documents(q.shape[0], q.shape[2]), window)
        of = heads, k.shape[1], *seen
        return cls(
            attention_kernel(f"{name}_fwd", *of, widths, moved),
            attention_kernel(f"{name}_bwd", *of, widths, 2 * moved),
        )


def _attended(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradients: torch_context.Gradients,
) -> Tensor:
    """The output of an attention that was launched; `gradients` launches its backward."""
    b, h, s, _ = q.shape
    out = t.empty((b, h, s, v.shape[-1]), q.itemsize)
    if v.shape == k.shape:
        out.strides = q.strides
    lse = t.empty((b, h, s), 4)
    saved = out.view(*out.shape)
    saved.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("attention_backward")
        _ = (saved, lse, g)
        grads = gradients(t, q, k, v)
        for grad in grads:
            # In the layout of q, k and v: the transposes before them need no copy back.
            grad.local = False
        return [*grads]

    return t.apply(out, [q, k, v], backward)


def triton_attention(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by FlashAttention in Triton (2022): heads stay behind tokens, so nothing is transposed."""
    work = _Work.of(t, q, k, v, "triton_attention")
    t.cpu("attention")
    t.saves()
    t.launch(work.forward)
    return _attended(t, q, k, v, partial(_triton_backward, work))


def _triton_backward(
    work: _Work, t: Tape, q: Tensor, k: Tensor, v: Tensor
) -> list[Tensor]:
    """Triton's backward (flash_attn_triton.py, _flash_attn_backward).

    It first sums output times gradient for each row, and adds the queries' gradient up in fp32, which is zeroed before
    and copied after.
    """
    sums = t.empty(q.shape, 4)
    t.launch(Kernel("fused", (q.elements,), bytes=2 * q.size))
    t.launch(Kernel("fused", (q.elements,), bytes=4.0 * q.elements))
    t.launch(work.backward)
    t.launch(Kernel("fused", (q.elements,), bytes=6.0 * q.elements))
    grads = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
    del sums
    return grads


def with_sinks(t: Tape, x: Tensor, sinks: Tensor) -> Tensor:
    """Attention's output times the share that a learned sink of each head leaves to it.

    The share is a number a row, sigmoid(lse - sink), in fp32 (torchtitan, models/gpt_oss/model/model.py).
    """
    rows = x.elements // x.shape[-1]
    for moved in (8.0, 8.0, 6.0):  # difference, sigmoid, in 16 bits
        t.cpu("elementwise")
        t.launch(Kernel("fused", (rows,), bytes=moved * rows))
    share = t.empty((rows,), 4)
    t.cpu("elementwise")
    t.launch(Kernel("mul", (x.elements,), layout="row"))
    t.saves()
    backward = partial(_sinks_backward, t, x, share, (sinks.shape, sinks.itemsize))
    return t.apply(t.empty(x.shape, x.itemsize), [x, sinks], backward)


def _sinks_backward(
    t: Tape, x: Tensor, share: Tensor, sinks: tuple[tuple[int, ...], int], g: Tensor
) -> list[Tensor | None]:
    """Gradients of attention's output `x`, and of the sinks, of which shape and bytes of a number are given."""
    t.cpu("elementwise_backward", 6)
    t.launch(Kernel("mul", (g.elements,), bytes=3 * g.size))
    product = t.empty(x.shape, x.itemsize)
    t.launch(Kernel("sum", (x.elements,), layout="row", bytes=g.size))
    t.launch(Kernel("mul", (g.elements,), layout="row"))
    grad = t.empty(x.shape, x.itemsize)
    del product
    rows = share.elements
    for moved in (6.0, 12.0, 4.0):  # in 32 bits, sigmoid, summed for each head
        t.launch(Kernel("fused", (rows,), bytes=moved * rows))
    return [grad, t.empty(*sinks)]


def split_joined(t: Tape, joined: Tensor, widths: list[int]) -> list[Tensor]:
    """Views of a joined projection's output; backward puts their gradients together by one copy."""
    split = _Split(t, joined, len(widths))
    t.cpu("view", len(widths))
    shapes = [(*joined.shape[:-1], width) for width in widths]
    first, *others = (Tensor(joined.storage, s, joined.itemsize) for s in shapes)
    main = t.apply(first, [joined], split.join)
    return [main, *(t.apply(part, [main], split.keep) for part in others)]


@dataclass(frozen=True)
class _Split:
    """A joined tensor that was split: the gradients of its parts, but for the first, until they are joined."""

    t: Tape
    joined: Tensor
    parts: int
    gradients: list[Tensor] = field(default_factory=list)

    def keep(self, g: Tensor) -> list[Tensor | None]:
        """Backward of a further part."""
        self.gradients.append(g)
        return [None]

    def join(self, g: Tensor) -> list[Tensor | None]:
        """Backward of the first part, which runs last."""
        t, joined = self.t, self.joined
        t.cpu("view_backward", self.parts)
        t.launch(Kernel("cat", (joined.elements,), bytes=2 * joined.size))
        self.gradients.clear()
        return [t.empty(joined.shape, joined.itemsize)]


def merge_heads(t: Tape, x: Tensor) -> Tensor:
    """``transpose(1, 2).reshape(B, S, -1)``: one copy forward, none backward; none where heads lie behind tokens."""
    b, h, s, d = x.shape
    if t.written_out and not heads_last(t):
        return written_out.joined(t, x)
    if heads_last(t) or t.plain:  # as the memory-efficient kernel writes them
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
