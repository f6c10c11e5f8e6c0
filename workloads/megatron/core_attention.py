"""Kernels of Megatron's attention: fused ones, over all ranks that share a sequence, or batched products.

Before FlashAttention, products surrounded a softmax that wrote all scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges import te_context
from prestep.workloads.exchanges.te_context import Part, Way
from prestep.workloads.megatron.documents import in_documents, reorder
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.gemm import UNTRANSPOSED
from prestep.workloads.megatron.shard import Heads, Shard
from prestep.workloads.operation import Operand
from prestep.workloads.operators.attention import Fused, fused
from prestep.workloads.torch.activation_checkpoint import detached
from prestep.workloads.torch.aten_products import multiply_batch
from prestep.workloads.torch.attention import in_window
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes of an element whose heads are exchanged ahead of attention in fp8 and behind it, by how its scales are found:
# what attention reads is cast first, and with delayed scales its results leave it in fp8 (Transformer Engine,
# AttnFuncWithCPAndQKVOA2A). Others, and attention in 16 bits, send 16 bits.
WIDTHS = {"delayed": (1, 1), "dynamic": (1, 2)}
IN_16_BITS = (2, 2)
# The fused causal softmax takes rows of up to so many scores, whole thread blocks at a time
# (fused_kernels/scaled_upper_triang_masked_softmax.h: warps of up to 32 threads, a row each, or two rows of up to 128).
LONGEST, THREADS, WARP, SHORT = 4096, 128, 32, 128
# Without it PyTorch casts scores to fp32, scales, masks, normalises and casts back, one kernel each
# (fused_softmax.py, forward_torch_softmax, with attention_softmax_in_fp32); backward the same the other way round.
# Bytes a score.
STEPS = (6.0, 8.0, 8.0, 8.0, 6.0)
STEPS_BACKWARD = (6.0, 12.0, 8.0, 8.0, 6.0)


def attention(
    t: Tape, inputs: list[Tensor], heads: Heads, s: Shard, joins: bool = True
) -> Tensor:
    """Attention of this rank's queries to all keys; saves its inputs and what its kernels leave for backward.

    ``joins``: backward, gradients of the last input are put together here, for the backward of its projection.
    """
    x = inputs[-1]
    core: _Scores | _Fused
    if s.options.attention == "unfused":
        core = _Scores.of(heads, s)
    else:
        core = _Fused(heads, in_documents(s), s)
    y = t.empty((*x.shape[:-1], heads.queries * heads.values), x.itemsize)
    saved = core.forward(t, y)

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, saved)
        core.backward(t)
        grads: list[Tensor | None] = [t.empty(x.shape, x.itemsize) for x in inputs]
        if joins:
            t.launch(Kernel("aten cat", (x.elements,), bytes=2 * x.size))
        return grads

    return t.apply(y, inputs, backward)


@dataclass(frozen=True)
class _Fused:
    """One kernel forward and one backward: it leaves its output and a float per row.

    ``s``: of what attention sees; ``samples``: of the samples that hold it.
    """

    heads: Heads
    s: Shard
    samples: Shard

    def forward(self, t: Tape, y: Tensor) -> list[Tensor]:
        """Launches the kernel; what backward needs of it."""
        statistics = t.empty((self.s.batch, self.heads.queries, self.s.tokens), 4)
        t.cpu("attention")
        self._attend(t, "fwd")
        return [detached(y), statistics]

    def backward(self, t: Tape) -> None:
        """Launches the kernel of the gradients."""
        t.cpu("attention_backward")
        self._attend(t, "bwd")

    def _attend(self, t: Tape, way: Way) -> None:
        """Attention in one direction to all keys, which other ranks may have."""
        heads, s = self.heads, self.s
        self._quantize(t, way)
        part = Part(s.batch, s.tokens, heads.queries, heads.keys, heads.width(way))
        context = s.context
        if context is not None and in_window(1, s.tokens, heads.window)[1] < s.tokens:
            # Around a ring, ranks would need keys of their neighbour only, which is left out.
            context = replace(context, ring=None)
        reorder(t, self.samples, way)
        in_8_bits = WIDTHS.get(s.numbers.scaling, IN_16_BITS)
        widths = in_8_bits if s.options.fp8_dot_product_attention else IN_16_BITS
        again = s.options.exchange_result_again
        block = partial(self._kernel, t, way)
        te_context.attend(t, way, part, context, block, widths, again)

    def _kernel(self, t: Tape, way: Way, part: Part) -> Kernel:
        """The kernel that attends to the keys of a part: that of PyTorch's operator, which programs call."""
        batch, tokens = in_window(part.batch, part.tokens, self.heads.window)
        flash2 = self.s.options.attention == "flash2"
        wide, narrow = self.heads.dim, self.heads.values
        if flash2:  # it takes heads of one width
            wide = narrow = part.dim
        q, k, v, y = (
            Operand("bf16", (batch, heads, tokens, width))
            for heads, width in (
                *((part.queries, wide), (part.keys, wide)),
                *((part.keys, narrow), (part.queries, narrow)),
            )
        )
        call = Fused("flash" if flash2 else "cudnn", q, k, v, keeps=True)
        operation = call.forward(y)
        if way == "bwd":
            operation = call.backward(y, y, (q, k, v), t.deterministic)
        [kernel], *_ = t.shared.launched(operation, fused)
        in_8_bits = self.s.options.fp8_dot_product_attention
        return replace(kernel, dtype="fp8") if in_8_bits else kernel

    def _quantize(self, t: Tape, way: Way) -> None:
        """Casts queries, keys and values to fp8 before attention in fp8; backward the output's gradient.

        Results are in 16 bits (Transformer Engine, FusedAttnFunc; what travels in a ring is counted in 16 bits, too;
        exchanged heads: `WIDTHS`).
        """
        heads, s = self.heads, self.s
        if not s.options.fp8_dot_product_attention:
            return
        width = heads.queries * heads.values
        if way == "fwd":
            both = heads.dim + heads.values
            width = heads.queries * heads.dim + heads.keys * both
        elements = s.batch * s.tokens * width
        t.cpu("quantize")
        pass_over(t, elements, UNTRANSPOSED[s.numbers.scaling] * elements)


def softmax_is_fused(
    batches: int, rows: int, columns: int, length: int | None = None
) -> bool:
    """Whether the fused causal softmax takes ``batches`` (samples times heads) of (rows, columns) scores.

    ``FusedScaleMaskSoftmax.is_kernel_available`` of Megatron-LM: 16 < columns <= 4096, rows and columns by fours, and
    batches that fill the kernel's blocks. ``length``: what it takes for a row's length there, if not the columns.
    """
    return (
        16 < columns <= LONGEST
        and rows % 4 == 0
        and columns % 4 == 0
        and batches % 4 == 0
        and batches % rows_of_a_block(length or columns) == 0
    )


def rows_of_a_block(length: int) -> int:
    """Rows of scores of such a length that a thread block of the fused softmax takes (get_batch_per_block)."""
    padded = 1 << (length - 1).bit_length()
    return THREADS // min(padded, WARP) * (2 if padded <= SHORT else 1)


@dataclass(frozen=True)
class _Scores:
    """The scores of ``n`` samples and heads, (rows, columns) each, in memory between two products (CoreAttention).

    ``width`` is that of queries and keys, ``values`` that of values; ``fused``: one kernel makes their softmax;
    ``mask`` is the bytes of a dropout mask, 0 without dropout; ``alibi``: they begin as a bias by distance.
    """

    n: int
    rows: int
    columns: int
    width: int
    values: int
    fused: bool
    mask: float
    alibi: bool = False

    @classmethod
    def of(cls, heads: Heads, s: Shard) -> _Scores:
        """Of a rank's queries and all keys."""
        n, rows, columns = s.batch * heads.queries, s.tokens, s.seq_len
        by_heads = s.options.fused_softmax_check == "heads"
        fused = softmax_is_fused(n, rows, columns, heads.queries if by_heads else None)
        mask = float(n * rows * columns) if s.options.attention_dropout else 0.0
        widths = heads.dim, heads.values
        return cls(n, rows, columns, *widths, fused, mask, heads.alibi)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.n, self.rows, self.columns

    @property
    def count(self) -> int:
        return self.n * self.rows * self.columns

    @property
    def size(self) -> float:
        """Bytes of all scores."""
        return 2.0 * self.count

    @property
    def softmax_bytes(self) -> tuple[float, ...]:
        """Of each of its kernels; the causal one reads the scores up to the diagonal and writes all."""
        if self.fused:
            return (1.5 * self.size,)
        return tuple(step * self.count for step in STEPS)

    @property
    def softmax_backward_bytes(self) -> tuple[float, ...]:
        if self.fused:
            return (2.0 * self.size,)
        return tuple(step * self.count for step in STEPS_BACKWARD)

    def forward(self, t: Tape, y: Tensor) -> list[Tensor]:
        """Scores, their softmax, dropout, and the values that they weigh; what backward needs of it."""
        t.cpu("unfused_attention")
        if self.alibi:
            # torch.baddbmm copies the bias, one row for all queries, to where its product reads it and adds to it.
            t.cpu("elementwise")
            pass_over(t, self.count, 2 * self.size)
        self._products(t, self.width, "nt")
        saved = [t.empty(self.shape, y.itemsize)]
        softmax(t, self.count, self.softmax_bytes, "elementwise")
        if not self.fused:
            saved.append(t.empty(self.shape, 4))  # the softmax in fp32
        if self.mask:
            saved.append(t.empty(self.shape, 3))  # values and a byte of mask
        self._drop(t)
        self._products(t, self.values, "nn")
        t.launch(Kernel("aten copy", (y.elements,), layout="strided", bytes=2 * y.size))
        return saved

    def backward(self, t: Tape) -> None:
        """The same the other way round, two products for each."""
        t.cpu("unfused_attention_backward")
        self._products(t, self.values, "tn", "nt")
        self._drop(t)
        softmax(t, self.count, self.softmax_backward_bytes, "elementwise_backward")
        self._products(t, self.width, "nn", "tn")

    def _products(self, t: Tape, width: int, *layouts: str) -> None:
        products(t, self.n, self.rows, width, self.columns, layouts)

    def _drop(self, t: Tape) -> None:
        """Dropout, forward or backward."""
        if self.mask:
            moved = 2 * self.size + self.mask
            pass_over(t, self.count, moved)


def softmax(t: Tape, count: int, moved: tuple[float, ...], host: str) -> None:
    """One kernel for each of the given bytes; the host's time of the first is attention's."""
    for i, size in enumerate(moved):
        t.cpu(host, float(i > 0))
        pass_over(t, count, size)


def products(
    t: Tape, n: int, rows: int, dim: int, columns: int, layouts: tuple[str, ...]
) -> None:
    """Batched products of attention: ``n`` of (rows, columns) scores with ``dim`` wide heads."""
    shapes = {
        "nt": (rows, columns, dim),
        "nn": (rows, dim, columns),
        "tn": (columns, dim, rows),
    }
    for layout in layouts:
        multiply_batch(t, n, *shapes[layout], layout)
