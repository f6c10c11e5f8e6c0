"""Layers as Hugging Face's transformers writes them: norms, rotations and the loss, operator by operator.

Operators and what they keep are those of `models/llama/modeling_llama.py` (LlamaRMSNorm, apply_rotary_pos_emb) and
`loss/loss_utils.py` (ForCausalLMLoss), backward passes autograd's formulas (torch, derivatives.yaml). They were held
against a trace of an H100 (lab/cases/peft): a norm of 4,096 x 4,096 takes 0.27 ms forward and 0.53 ms backward.

Kernels are ATen operations, whose times were measured on H100 and H200 (`prestep.sim.costs.aten`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.tape import Tape, Tensor

NARROW, WIDE = 2, 4  # bytes of an element: in 16 bits, in 32 bits

# An operation over elements: its name, its layout, the type that it computes in, bytes of an element.
Operation = tuple[str, str, str, int]
WIDENED: Operation = ("copy", "", "bf16>fp32", NARROW + WIDE)
NARROWED: Operation = ("copy", "", "fp32>bf16", NARROW + WIDE)
PRODUCT: Operation = ("mul", "", "fp32", 3 * WIDE)
BY_ROW_STATISTIC: Operation = ("mul", "column", "fp32", 2 * WIDE)
BY_WEIGHT: Operation = ("mul", "row", "bf16", 2 * NARROW)

#: A root mean square over rows: the reciprocal root of one number a row is small beside them.
NORM_BEFORE = (WIDENED, ("pow", "", "fp32", 2 * WIDE))
NORM_AFTER = (BY_ROW_STATISTIC, NARROWED, BY_WEIGHT)
#: Its backward pass: through the weight, and through the product with the reciprocal root ...
BACK_BEFORE = (BY_WEIGHT, WIDENED, PRODUCT, BY_ROW_STATISTIC)
#: ... then through the mean of squares, added to what the product gave.
BACK_AFTER = (
    ("div", "strided", "fp32", WIDE),
    ("mul", "", "fp32", 2 * WIDE),
    PRODUCT,
    ("add", "", "fp32", 3 * WIDE),
    NARROWED,
)
SMALL = 4  # operations on one number a row, behind the sum of a backward pass

ROTATED = ("mul", "strided", "bf16", 2 * NARROW)
SUM_OF_BOTH = ("add", "strided", "bf16", 3 * NARROW)


def rms_norm(t: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """LlamaRMSNorm: keeps its input in fp32, a statistic a row and, for the weight's gradient, the normed input."""
    columns = x.shape[-1]
    rows, n = x.elements // columns, x.elements
    _over(t, n, NORM_BEFORE)
    _by_rows(t, "mean", rows, columns)
    for _ in ("epsilon", "reciprocal root"):
        _small(t, rows)
    kept = [t.empty(x.shape, WIDE), t.empty((rows,), WIDE)]
    _over(t, n, NORM_AFTER)
    if weight.requires_grad:
        kept.append(t.empty(x.shape, x.itemsize))
    t.saves()
    backward = partial(_norm_backward, t, kept, weight, x.itemsize)
    return t.apply(t.empty(x.shape, x.itemsize), [x, weight], backward)


def _norm_backward(
    t: Tape, kept: list[Tensor], weight: Tensor, itemsize: int, g: Tensor
) -> list[Tensor | None]:
    """Gradients of a norm's input and weight from what it has kept, which stays alive meanwhile."""
    wide, statistics = kept[:2]
    n, rows = wide.elements, statistics.elements
    grad = _weight_gradient(t, g, weight) if weight.requires_grad else None
    _over(t, n, BACK_BEFORE, back=True)
    _by_rows(t, "sum", rows, n // rows, back=True)
    for _ in range(SMALL):
        _small(t, rows, back=True)
    sums = [t.empty(wide.shape, WIDE) for _ in range(2)]
    _over(t, n, BACK_AFTER, back=True)
    del sums
    return [t.empty(wide.shape, itemsize), grad]


def _weight_gradient(t: Tape, g: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a norm's weight: a product with the normed input, summed over the rows."""
    n, columns = g.elements, weight.elements
    _over(t, n, [("mul", "", "bf16", 3 * NARROW)], back=True)
    t.cpu("elementwise_backward")
    size = float(NARROW * (n + columns))
    shape = (n // columns, columns)
    t.launch(Kernel("aten sum", shape, "bf16", "outer", size))
    return t.empty(weight.shape, weight.itemsize)


def rope(t: Tape, x: Tensor) -> Tensor:
    """apply_rotary_pos_emb on (batch, heads, seq, head_dim): x * cos + rotate_half(x) * sin; keeps nothing of x."""
    n = x.elements
    shape, itemsize = x.shape, x.itemsize
    t.cpu("view", 2)
    _over(t, n, [ROTATED])
    _negated_half(t, n)
    _over(t, n, [("cat", "inner", "bf16", 2 * NARROW), ROTATED, SUM_OF_BOTH])

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        t.cpu("view_backward", 4)
        _over(t, n, [ROTATED], back=True)
        _negated_half(t, n, back=True)
        # Each half's gradient is put into a tensor of zeros of the whole width, and both are added.
        for _ in ("first half", "second half"):
            t.cpu("elementwise_backward", 2)
            t.launch(Kernel("aten fill", (n,), "bf16", bytes=float(NARROW * n)))
            half = n // 2
            size = float(2 * NARROW * half)
            t.launch(Kernel("aten copy", (half,), "bf16", "strided", size))
        both = ("add", "", "bf16", 3 * NARROW)
        _over(t, n, [both, ROTATED, SUM_OF_BOTH], back=True)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty(shape, itemsize), [x], backward)


def widened(t: Tape, x: Tensor) -> Tensor:
    """``x`` in fp32; its gradient is narrowed again."""
    shape, itemsize, n = x.shape, x.itemsize, x.elements
    _over(t, n, [WIDENED])

    def backward(g: Tensor) -> list[Tensor | None]:
        _over(t, n, [NARROWED], back=True)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty(shape, WIDE), [x], backward)


def cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    """ForCausalLMLoss: logits in fp32, then their cross entropy; keeps the log-probabilities in fp32."""
    vocab, n = logits.shape[-1], logits.elements
    rows, shape, itemsize = (n // vocab, vocab), logits.shape, logits.itemsize
    wide = float(WIDE * n)
    _over(t, n, [WIDENED])
    widened = t.empty(shape, WIDE)
    t.cpu("loss")
    t.launch(Kernel("aten _log_softmax", rows, "fp32", bytes=2 * wide))
    logp = t.empty(shape, WIDE)
    del widened
    t.launch(Kernel("nll_loss_fwd", rows, bytes=32.0 * rows[0]))
    backward = partial(_loss_backward, t, logp, itemsize)
    return t.apply(t.empty((1,), WIDE), [logits], backward)


def _loss_backward(
    t: Tape, logp: Tensor, itemsize: int, _: Tensor
) -> list[Tensor | None]:
    """The gradient of logits of so many bytes each, by way of one in fp32."""
    rows = (logp.elements // logp.shape[-1], logp.shape[-1])
    t.cpu("loss_backward")
    t.launch(Kernel("aten fill", (logp.elements,), "fp32", bytes=logp.size))
    picked = t.empty(logp.shape, WIDE)
    t.launch(Kernel("nll_loss_bwd", rows, bytes=32.0 * rows[0]))
    name = "aten _log_softmax_backward_data"
    t.launch(Kernel(name, rows, "fp32", bytes=3 * logp.size))
    gradient = t.empty(logp.shape, WIDE)
    del picked
    _over(t, logp.elements, [NARROWED], back=True)
    del gradient
    return [t.empty(logp.shape, itemsize)]


def _over(
    t: Tape, elements: int, operations: Iterable[Operation], back: bool = False
) -> None:
    """Operations over so many elements, each issued by the host."""
    for name, layout, dtype, size in operations:
        t.cpu("elementwise_backward" if back else "elementwise")
        moved = float(size * elements)
        t.launch(Kernel(f"aten {name}", (elements,), dtype, layout, moved))


def _by_rows(t: Tape, name: str, rows: int, columns: int, back: bool = False) -> None:
    """A number for each row of an array in fp32."""
    t.cpu("elementwise_backward" if back else "elementwise")
    moved = float(WIDE * rows * (columns + 1))
    t.launch(Kernel(f"aten {name}", (rows, columns), "fp32", bytes=moved))


def _small(t: Tape, rows: int, back: bool = False) -> None:
    """An operation on one number a row."""
    _over(t, rows, [("mul", "", "fp32", 2 * WIDE)], back)


def _negated_half(t: Tape, elements: int, back: bool = False) -> None:
    _over(t, elements // 2, [("neg", "strided", "bf16", 2 * NARROW)], back)
