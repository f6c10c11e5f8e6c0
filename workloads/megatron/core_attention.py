"""Attention as Megatron did it before FlashAttention: batched products around a softmax that writes all scores."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.megatron.shard import Shard
from workloads.torch.tape import Tape, Tensor

# The fused causal softmax takes rows of up to so many scores, whole blocks of thread blocks at a time
# (fused_kernels/scaled_upper_triang_masked_softmax.h: four warps, a row each, or two rows of up to 128 scores).
LONGEST, ROWS, SHORT = 4096, 4, 128
# Without it PyTorch casts scores to fp32, scales, masks, normalises and casts back, one kernel each
# (fused_softmax.py, forward_torch_softmax, with attention_softmax_in_fp32); backward the same the other way round.
# Bytes a score.
STEPS = (6.0, 8.0, 8.0, 8.0, 6.0)
STEPS_BACKWARD = (6.0, 12.0, 8.0, 8.0, 6.0)


def softmax_is_fused(batches: int, rows: int, columns: int) -> bool:
    """Whether the fused causal softmax takes ``batches`` (samples times heads) of (rows, columns) scores.

    ``FusedScaleMaskSoftmax.is_kernel_available`` of Megatron-LM: 16 < columns <= 4096, rows and columns by fours, and
    batches that fill the kernel's blocks.
    """
    per_block = 2 * ROWS if columns <= SHORT else ROWS
    return (
        16 < columns <= LONGEST
        and rows % 4 == 0
        and columns % 4 == 0
        and batches % per_block == 0
    )


def unfused_attention(
    t: Tape, qkv: Tensor, heads: int, kv: int, dim: int, s: Shard
) -> Tensor:
    """Batched GEMMs around a masked softmax that holds all scores in memory (CoreAttention)."""
    n, rows = s.batch * heads, s.tokens
    count = n * rows * s.seq_len
    scores = 2.0 * count
    mask = scores / 2 if s.options.attention_dropout else 0.0
    fused = softmax_is_fused(n, rows, s.seq_len)
    _ = kv
    t.cpu("unfused_attention")
    products(t, n, rows, dim, s.seq_len, ("nt",))
    probabilities = t.empty((n, rows, s.seq_len), qkv.itemsize)
    # The causal kernel reads the scores up to the diagonal and writes all.
    softmax(
        t,
        count,
        (1.5 * scores,) if fused else tuple(step * count for step in STEPS),
        "elementwise",
    )
    kept = None if fused else t.empty((n, rows, s.seq_len), 4)  # the softmax in fp32
    dropped = (
        t.empty((n, rows, s.seq_len), 3) if mask else None
    )  # values and a byte of mask
    if mask:
        t.launch(Kernel("fused", (count,), bytes=2 * scores + mask))
    products(t, n, rows, dim, s.seq_len, ("nn",))
    y = t.empty((*qkv.shape[:-1], heads * dim), qkv.itemsize)
    t.launch(Kernel("copy", (y.elements,), layout="strided"))

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, probabilities, dropped, kept)
        t.cpu("unfused_attention_backward")
        products(t, n, rows, dim, s.seq_len, ("tn", "nt"))
        if mask:
            t.launch(Kernel("fused", (count,), bytes=2 * scores + mask))
        moved = (
            (2.0 * scores,) if fused else tuple(step * count for step in STEPS_BACKWARD)
        )
        softmax(t, count, moved, "elementwise_backward")
        products(t, n, rows, dim, s.seq_len, ("nn", "tn"))
        grad = t.empty(qkv.shape, qkv.itemsize)
        t.launch(Kernel("cat", (grad.elements,), bytes=2 * grad.size))
        return [grad]

    return t.apply(y, [qkv], backward)


def softmax(t: Tape, count: int, moved: tuple[float, ...], host: str) -> None:
    """One kernel for each of the given bytes; the host's time of the first is attention's."""
    for i, size in enumerate(moved):
        t.cpu(host, float(i > 0))
        t.launch(Kernel("fused", (count,), bytes=size))


def products(
    t: Tape, n: int, rows: int, dim: int, columns: int, layouts: tuple[str, ...]
) -> None:
    """Batched products of attention: ``n`` of (rows, columns) scores with ``dim`` wide heads, as one tall GEMM each."""
    for layout in layouts:
        if layout == "nt":
            shape = (n * rows, columns, dim)
        elif layout == "nn":
            shape = (n * rows, dim, columns)
        else:
            shape = (n * columns, dim, rows)
        t.launch(
            Kernel(
                "bmm", (n, *shape), layout=layout, flops=2.0 * n * rows * columns * dim
            )
        )
