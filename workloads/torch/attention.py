"""Operators of an attention layer between its projections (symbolic, as in ``functional``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prestep.sim.extras import lazily
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.attention import (
    EFFICIENT,
    Fused,
    fused,
    heads_behind,
)
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.exchanges import torch_context
    from prestep.workloads.torch import attention_kernels, written_out


def rope(t: Tape, x: Tensor, heads_behind: bool = False) -> Tensor:
    """Rotary embedding written with elementwise operators on the two halves of each head.

    ``x`` is (batch, heads, seq, head_dim), or (batch, seq, heads, head_dim) where heads lie behind tokens.
    """
    if t.choices is not None and t.choices.modules == "transformers":
        return written_out.rope(t, x, heads_behind)
    if heads_last(t) and not heads_behind:
        turned = rope(t, aten.transpose(t, x, 1, 2), True)
        return aten.transpose(t, turned, 1, 2)
    half = x.shape[-1] // 2
    shape = (x.shape[1], 1, half) if heads_behind else (x.shape[2], half)
    cosines, sines = (t.table(n, shape, x.itemsize) for n in ("cosines", "sines"))
    one, two = split_joined(t, x, [half, half])
    first = aten.sub(t, aten.mul(t, one, cosines), aten.mul(t, two, sines))
    second = aten.add(t, aten.mul(t, two, cosines), aten.mul(t, one, sines))
    return aten.cat(t, [first, second])


def cut(t: Tape, x: Tensor, heads: int) -> Tensor:
    """``x.view(batch, seq, heads, -1)``."""
    return aten.reshape(t, x, *x.shape[:2], heads, x.shape[-1] // heads)


def by_head(t: Tape, x: Tensor, heads: int) -> Tensor:
    """``x.view(batch, seq, heads, -1).transpose(1, 2)``."""
    return aten.transpose(t, cut(t, x, heads), 1, 2)


def merge_heads(t: Tape, x: Tensor) -> Tensor:
    """``x.transpose(1, 2).reshape(batch, seq, -1)``: a copy where heads do not lie behind tokens."""
    batch, heads, length, width = x.shape
    return aten.reshape(t, aten.transpose(t, x, 1, 2), batch, length, heads * width)


def heads_last(t: Tape) -> bool:
    """Whether attention takes heads behind tokens, as projections make them: their views need no copies."""
    return t.choices is not None and t.choices.attention == "triton"


#: Tensors that PyTorch's fused kernels save: queries, keys, values, output, its statistics, and two of random numbers.
FUSED = 7
#: Values of `pytorch.attention` that are FlashAttention 2: PyTorch's, and its own library's.
FLASH = ("flash", "flash2")
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


def attention(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int = 0,
    causal: bool = True,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention over this rank's heads; ranks that exchange heads for tokens have all tokens meanwhile.

    `window`: tokens that a query looks back, 0: all; `mask`: what is added to the scores, in place of a causal kernel.
    """
    if t.heads is not None:
        q, k, v = (torch_context.to_heads(t, x, t.heads) for x in (q, k, v))
        y = _attention(t, q, k, v, window, causal)
        y = torch_context.to_tokens(t, y, t.heads)
    elif sinks is not None and t.written_out and not _is_flash2(t):
        return attention_kernels.with_sinks(t, q, k, v, sinks)
    else:
        y = _attention(t, q, k, v, window, causal and mask is None, mask)
    return y if sinks is None else with_sinks(t, y, sinks)


def _is_flash2(t: Tape) -> bool:
    """Whether FlashAttention's own library computes it, which has windows and hands out sums of rows."""
    return t.choices is not None and t.choices.attention == "flash2"


def _backend(t: Tape, q: Tensor, k: Tensor, mask: Tensor | None) -> str:
    """FlashAttention takes no mask, and memory-efficient attention no heads that share keys.

    PyTorch computes these in separate operations; recordings for another GPU have one operation, cuDNN's, which stands
    for them in models too.
    """
    asked = "cudnn" if t.choices is None else t.choices.attention
    if t.plain:
        return EFFICIENT
    if asked in FLASH and mask is None:
        return "flash"
    narrow = asked in FLASH or asked == EFFICIENT
    return EFFICIENT if narrow and k.shape[1] == q.shape[1] else "cudnn"


def _attention(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    causal: bool,
    mask: Tensor | None = None,
) -> Tensor:
    """Scaled-dot-product attention, by cuDNN if nothing is said: saves q, k, v, output and a float per row."""
    if heads_last(t):
        return triton_attention(t, q, k, v)
    tokens = t.documents(q.shape[0], q.shape[2])[1]
    if 0 < window < tokens and t.ring is None and not _is_flash2(t):
        # No kernel behind scaled_dot_product_attention has windows; FlashAttention's own library has.
        mask, window, causal = attention_kernels.window_mask(t, tokens), 0, False
    if t.plain and k.shape[1] != q.shape[1]:  # memory-efficient attention: no groups
        if t.ring is None:
            return attention_kernels.in_operations(t, q, k, v, causal, mask)
        k, v = (attention_kernels.for_every_head(t, x, q.shape[1]) for x in (k, v))
    t.saves(FUSED)
    t.cpu("view")  # the output that is saved is detached
    work = _Attention.of(t, q, k, v, window, causal, mask)
    if t.ring is None:
        work.launch(t, work.forward)
        return _attended(t, q, k, v, work.out.strides, work.gradients, mask)
    ring, shapes = t.ring, torch_context.Shapes.of(q, k, v)
    t.cpu("attention")
    ring.forward(t, shapes, t.shared.launched(work.forward, fused)[0])

    def around(g: Tensor, t: Tape, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        t.cpu("attention_backward")
        block = partial(work.gradients, g)
        grads = ring.backward(t, shapes, (q, k, v), block)
        return [work.like(x, grad) for x, grad in zip((q, k, v), grads, strict=True)]

    return _attended(t, q, k, v, work.out.strides, around)


@dataclass(frozen=True)
class _Attention:
    """Attention of a block of keys: PyTorch's operator, and what it is called with."""

    call: Fused
    out: Operand

    @classmethod
    def of(
        cls,
        t: Tape,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        window: int,
        causal: bool,
        mask: Tensor | None = None,
    ) -> _Attention:
        backend = _backend(t, q, k, mask)
        added = None if mask is None else mask.operand
        if mask is not None and backend == EFFICIENT:  # one for every head
            sample, _, *ends = aten.strides_of(mask)
            apart = sample if mask.shape[0] > 1 else 0
            sizes, strides = (*q.shape[:3], k.shape[2]), (apart, 0, *ends)
            added = aten.view(mask, sizes, strides).operand
        whole = q.shape[0], q.shape[2]
        seen = in_window(*t.documents(*whole), window)
        # A checkpoint's hooks take what nodes save.
        recorded = t.grad_enabled or bool(t.hooked)
        keeps = recorded and any(x.requires_grad for x in (q, k, v))
        first, second, third = (_seen(x.operand, whole, seen) for x in (q, k, v))
        call = Fused(backend, first, second, third, keeps, causal, added)
        shape = (*q.shape[:-1], v.shape[-1])
        out = Operand(call.q.dtype, shape, call.output_strides(q.operand, shape))
        return cls(call, out)

    def _part(self, whole: Operand) -> Operand:
        """What attention sees of the output, or of its gradient."""
        batch, _, tokens, _ = self.out.shape
        seen = self.call.q.shape[0], self.call.q.shape[2]
        return _seen(whole, (batch, tokens), seen)

    def launch(self, t: Tape, operation: Operation, share: float = 1.0) -> None:
        """Calls the operator, or that of its gradients."""
        t.operate(operation, fused, share=share)

    def like(self, x: Tensor, grad: Tensor) -> Tensor:
        """A gradient of queries, keys or values, laid out as the kernel writes it."""
        grad.strides = self.call.output_strides(x.operand, x.shape)
        return grad

    @property
    def forward(self) -> Operation:
        return self.call.forward(self._part(self.out))

    def gradients(
        self, g: Tensor, t: Tape, q: Tensor, k: Tensor, v: Tensor
    ) -> list[Tensor]:
        """Launches the backward pass, with what it needs while it runs."""
        grads = [self.like(x, t.empty(x.shape, x.itemsize)) for x in (q, k, v)]
        out, *parts = (self._part(x) for x in (self.out, *(x.operand for x in grads)))
        gradient = self._part(g.operand)
        backward = self.call.backward(gradient, out, parts, t.deterministic)
        # Windows are seen as blocks, which have tokens of their neighbours too.
        self.launch(t, backward, q.elements / self.call.q.elements)
        return grads


def _seen(x: Operand, whole: tuple[int, int], seen: tuple[int, int]) -> Operand:
    """An operand of so many samples and tokens as attention sees it, which may be in documents or blocks."""
    if whole == seen:
        return x
    (samples, tokens), (_, heads, _, width) = seen, x.shape
    return Operand(x.dtype, (samples, heads, tokens, width))


def _attended(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strides: tuple[int, ...],
    gradients: Callable[[Tensor, Tape, Tensor, Tensor, Tensor], list[Tensor]],
    mask: Tensor | None = None,
) -> Tensor:
    """The output of an attention that was launched; `gradients` launches its backward."""
    b, h, s, _ = q.shape
    out = t.empty((b, h, s, v.shape[-1]), q.itemsize)
    out.strides = strides
    lse = t.empty((b, h, s), 4)
    saved = out.view(*out.shape)
    saved.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (saved, lse, mask)
        return [*gradients(g, t, q, k, v)]

    return t.apply(out, [q, k, v], backward)


def triton_attention(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by FlashAttention in Triton (2022): heads stay behind tokens, so nothing is transposed."""
    t.cpu("triton_function")
    t.saves(5)
    t.launch(attention_kernels.kernel_of(t, q, k, v, "fwd"))
    shape = (*q.shape[:-1], v.shape[-1])
    return _attended(t, q, k, v, heads_behind(shape), attention_kernels.gradients)


def with_sinks(t: Tape, x: Tensor, sinks: Tensor) -> Tensor:
    """Attention's output times the share that a learned sink of each head leaves to it.

    The share is a number a row, sigmoid(lse - sink), in fp32 (torchtitan, models/gpt_oss/model/model.py).
    """
    batch, heads, tokens, _ = x.shape
    sums = Tensor(None, (batch, heads, tokens), 4)
    beyond = aten.sub(t, sums, aten.reshape(t, sinks, 1, heads, 1))
    share = aten.to(t, aten.activation(t, "sigmoid", beyond), x.itemsize)
    del beyond
    return aten.mul(t, x, aten.reshape(t, share, batch, heads, tokens, 1))


def apart(t: Tape, parts: list[Tensor]) -> Tensor:
    """Tensors that kernels take as if they lay beside each other: no copy, and backward makes a gradient of each."""
    width = sum(x.shape[-1] for x in parts)
    y = Tensor(None, (*parts[0].shape[:-1], width), parts[0].itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        return [t.empty(x.shape, x.itemsize) for x in parts]

    return t.apply(y, parts, backward)


def split_joined(t: Tape, joined: Tensor, widths: list[int]) -> list[Tensor]:
    """``joined.split(widths, -1)``: views; backward puts their gradients together by one copy."""
    shape = joined.shape

    def join(parts: list[Tensor]) -> Tensor:
        whole = aten.joined(t, parts, shape, len(shape) - 1)
        parts.clear()
        return whole

    t.cpu("view")
    return taken_apart(t, joined, aten.beside(joined, widths), join)


def taken_apart(
    t: Tape, x: Tensor, views: list[Tensor], join: Callable[[list[Tensor]], Tensor]
) -> list[Tensor]:
    """Views of a value; their gradients wait for that of the first, which comes last, and are joined to the value's."""
    first, *others = views
    waiting: list[Tensor | None] = [None] * len(others)

    def keep(at: int, g: Tensor) -> list[Tensor | None]:
        waiting[at] = g
        return [None]

    def joined(g: Tensor) -> list[Tensor | None]:
        parts = [g, *(each for each in waiting if each is not None)]
        waiting.clear()
        return [join(parts)]

    main = t.apply(first, [x], joined)
    rest = enumerate(others)
    return [main, *(t.apply(y, [main], partial(keep, at)) for at, y in rest)]
