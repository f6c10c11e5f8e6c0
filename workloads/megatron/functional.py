"""Megatron's fused operators on the symbolic tape: elementwise work joined into one kernel, sharded projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.graph.kernel import Kernel
from workloads.torch.functional import launch_gemm as launch_gemm
from workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from workloads.job.megatron import Megatron
    from workloads.parallel.group import Group

STREAM = "nccl tp"
# Parts in which user buffers split a GEMM whose result is reduce-scattered beside it (Transformer Engine, num_splits).
SPLITS = 4
# Bytes an element that quantizing moves: read, written and written transposed; with dynamic scales the largest value is
# found before, and the transposed copy is made from the fp8 one; by rows and by columns both from bf16 (torchao); MXFP8
# by rows and by columns at once, with scales that are put in the products' order afterwards: 4.2 bytes, but rows for
# fitting of Llama 3 8B on GB200 take longer than with a scale for each tensor by as many as here (fitted).
QUANTIZING = {"delayed": 4.0, "dynamic": 7.0, "rowwise": 10.0, "mx": 8.0}
# The same where products take operands of any layout.
UNTRANSPOSED = {**QUANTIZING, "delayed": 3.0, "dynamic": 5.0}


@dataclass(frozen=True)
class Numbers:
    """How projections compute and add up.

    ``products`` is the type of quantized operands, "" where they are not; ``wide`` is the size in bytes of a gradient
    in the buffer that accumulates it; ``added`` are bytes moved for an element to add it there where the GEMM does not.
    """

    products: str
    wide: int
    fused_accumulation: bool
    overlap: bool  # tensor-parallel communication beside the GEMMs
    asynchronous: bool = True  # a gradient's all-reduce beside the weight's gradient
    scaling: str = "delayed"  # how fp8 operands get their scales
    transposes: bool = True  # and whether they are written transposed as well
    added: float | None = None  # None: the gradient read, the buffer read and written


def fused(
    t: Tape,
    inputs: list[Tensor],
    shape: tuple[int, ...],
    forward: float,
    backward: float,
    saved: float = 0.0,
    parameters: int = 0,
    kernels: tuple[int, int] = (1, 1),
) -> Tensor:
    """Elementwise work in one kernel (or ``kernels`` of equal parts): moves ``forward`` and ``backward`` bytes.

    Inputs are saved for backward as long as they have a storage, plus ``saved`` bytes (dropout masks, statistics). The
    last ``parameters`` inputs are parameters, whose gradients are column sums of the output's.
    """
    t.cpu("fused")
    y = t.empty(shape, inputs[0].itemsize)
    _parts_of(t, y, forward, kernels[0])
    kept = t.empty((max(1, int(saved)),), 1) if saved else None
    shapes = [(x.shape, x.itemsize) for x in inputs]

    def back(g: Tensor) -> list[Tensor | None]:
        _ = (kept, inputs)
        t.cpu("fused_backward")
        _parts_of(t, g, backward, kernels[1])
        first = len(shapes) - parameters
        grads: list[Tensor | None] = [t.empty(*shape) for shape in shapes[:first]]
        for shape in shapes[first:]:
            t.launch(Kernel("sum", (g.elements,), bytes=g.size))
            grads.append(t.empty(*shape))
        return grads

    return t.apply(y, inputs, back)


def _parts_of(t: Tape, x: Tensor, size: float, count: int) -> None:
    """Launches so many kernels over the elements of a tensor, which move ``size`` bytes together."""
    for _ in range(count):
        t.launch(Kernel("fused", (x.elements,), bytes=size / count))


def bias_add(t: Tape, x: Tensor, bias: Tensor | None) -> Tensor:
    """``x + bias`` as a kernel of its own (Megatron's linear layers do not use the GEMM's epilogue)."""
    if bias is None:
        return x
    return fused(t, [x, bias], x.shape, 2 * x.size, 0.0, parameters=1, kernels=(1, 0))


def bias_dropout_add(
    t: Tape, x: Tensor, bias: Tensor | None, residual: Tensor, o: Megatron
) -> Tensor:
    """``residual + dropout(x + bias)``: one kernel where fused, else one each."""
    mask = x.elements if o.hidden_dropout else 0.0
    forward, backward = (
        3 * x.size + mask,
        2 * x.size + mask if o.hidden_dropout or bias is not None else 0.0,
    )
    steps = 1 if o.bias_fusion else 1 + (bias is not None) + (o.hidden_dropout > 0)
    forward += (steps - 1) * 2 * x.size
    source = Tensor(None, x.shape, x.itemsize, x.node)
    other = Tensor(None, residual.shape, residual.itemsize, residual.node)
    source.requires_grad, other.requires_grad = x.requires_grad, residual.requires_grad
    inputs = [source, other, *([] if bias is None else [bias])]
    return fused(
        t,
        inputs,
        x.shape,
        forward,
        backward,
        mask,
        len(inputs) - 2,
        (steps, 1 if backward else 0),
    )


def activate(
    t: Tape, x: Tensor, bias: Tensor | None, gated: bool, o: Megatron
) -> Tensor:
    """Bias and GELU, or SwiGLU, as one kernel: saves its input."""
    width = x.shape[-1] // (2 if gated else 1)
    shape = (*x.shape[:-1], width)
    out = x.size / (2 if gated else 1)
    steps = 1 if o.bias_fusion or bias is None else 2
    forward = x.size + out + (steps - 1) * 2 * x.size
    inputs = [x, *([] if bias is None else [bias])]
    return fused(
        t,
        inputs,
        shape,
        forward,
        x.size + out + x.size,
        0.0,
        len(inputs) - 1,
        (steps, 1),
    )


def gemm(t: Tape, m: int, n: int, k: int, layout: str, o: Numbers) -> None:
    """A GEMM in the run's number format."""
    if o.products:
        moved = float(m * k + n * k + 2 * m * n)
        # Row scales are applied in fp32, as those of blocks are.
        rows = o.scaling == "rowwise" and o.products == "fp8"
        dtype = "fp8_block" if rows else o.products
        t.launch(
            Kernel(
                "gemm",
                (m, n, k),
                dtype=dtype,
                layout="nt",
                bytes=moved,
                flops=2.0 * m * n * k,
            )
        )
    else:
        launch_gemm(t, "gemm", m, n, k, layout)


def quantize(t: Tape, elements: int, o: Numbers) -> None:
    """An operand of an fp8 GEMM: read in bf16, written in fp8 as it is and transposed (fp8 GEMMs take rows only).

    In NVFP4 it is read once more for its scale and rotated (random Hadamard transform): as many bytes.
    """
    if o.products:
        t.cpu("quantize")
        t.launch(
            Kernel(
                "fused",
                (elements,),
                bytes=(QUANTIZING if o.transposes else UNTRANSPOSED)[o.scaling]
                * elements,
            )
        )


def column_linear(
    t: Tape, x: Tensor, w: Tensor, group: Group, sequence: bool, o: Numbers
) -> Tensor:
    """``x @ w.T`` with the rows of ``w`` spread over the group.

    Forward, sequence parallelism gathers ``x`` first. Backward, the input's gradient is summed over the group (or
    reduce-scattered) while the weight's gradient is computed; ``x`` is gathered again beside the input's GEMM
    (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
    """
    n, k = w.shape
    parts = group.size if sequence else 1
    whole = (x.shape[0] * parts, *x.shape[1:])
    m = x.elements * parts // k
    column = _Column(x, w, group, sequence and group.size > 1, o, m, x.requires_grad)
    t.cpu("linear")
    quantize(t, x.elements, o)
    if column.gathers:
        _gather_beside(t, column.gathered, group, o)
    gemm(t, m, n, k, "nt", o)
    if column.gathers:
        t.wait(t.record(STREAM))
    y = t.empty((*whole[:-1], n), x.itemsize)
    return t.apply(y, [x, w], lambda g: column.backward(t, g, whole))


@dataclass(frozen=True, eq=False)
class _Column:
    """A projection whose weight's rows are spread over the group; the input has ``m`` rows on all ranks together.

    ``gathers``: each rank has a part of the input; ``needs``: the input's gradient is wanted.
    """

    x: Tensor
    w: Tensor
    group: Group
    gathers: bool
    o: Numbers
    m: int
    needs: bool

    @property
    def gathered(self) -> float:
        """Bytes of the whole input, as the products take it."""
        k = self.w.shape[1]
        return float(self.m * k * (1 if self.o.products else self.x.itemsize))

    def backward(
        self, t: Tape, g: Tensor, whole: tuple[int, ...]
    ) -> list[Tensor | None]:
        """Gradients of the input and the weight; ``whole`` is the shape of the whole input."""
        (n, k), m, o, operand = self.w.shape, self.m, self.o, self.x
        t.cpu("linear_backward")
        quantize(t, m * n, o)
        if self.gathers:
            begin(t, "all_gather", self.gathered, self.group, o.overlap)
            operand = t.empty(whole, self.x.itemsize)
        grad = None
        if self.needs:
            grad = t.empty(whole, self.x.itemsize)
            gemm(t, m, k, n, "nn", o)
        if self.gathers:
            t.wait(t.record(STREAM))
        self._reduce_beside(t)
        weight_gradient(t, n, k, m, o, (g, operand))
        if self._reduces:
            t.wait(t.record(STREAM))
        if grad is not None and self.gathers:
            grad = t.empty(self.x.shape, self.x.itemsize)
        return [grad, Tensor(None, self.w.shape)]

    @property
    def _reduces(self) -> bool:
        """The input's gradient is a sum over the group."""
        return self.needs and self.group.size > 1

    def _reduce_beside(self, t: Tape) -> None:
        """Sums the input's gradient beside the weight's; not asynchronous, before it."""
        if self._reduces:
            op = "reduce_scatter" if self.gathers else "all_reduce"
            size = float(self.m * self.w.shape[1] * self.x.itemsize)
            begin(t, op, size, self.group)
        if not self.o.asynchronous:
            t.wait(t.record(STREAM))


def row_linear(
    t: Tape, x: Tensor, w: Tensor, group: Group, sequence: bool, o: Numbers
) -> Tensor:
    """``x @ w.T`` with the columns of ``w`` spread over the group: outputs are summed (or reduce-scattered)."""
    n, k = w.shape
    m = x.elements // k
    scatters = sequence and group.size > 1
    t.cpu("linear")
    quantize(t, x.elements, o)
    y = t.empty((*x.shape[:-1], n), x.itemsize)
    if scatters and o.overlap:
        _scatter_beside(t, m, n, k, group, o)
    else:
        gemm(t, m, n, k, "nt", o)
        if group.size > 1:
            reduce(t, y, group, sequence)
    if scatters:
        y = t.empty((x.shape[0] // group.size, *x.shape[1:-1], n), x.itemsize)
    return t.apply(
        y, [x, w], lambda g: _row_gradients(t, g, x, w, group if scatters else None, o)
    )


def _row_gradients(
    t: Tape, g: Tensor, x: Tensor, w: Tensor, gathered: Group | None, o: Numbers
) -> list[Tensor | None]:
    """Gradients of the input and the weight; the output's is ``gathered`` over a group where each rank has a part."""
    n, k = w.shape
    m = x.elements // k
    t.cpu("linear_backward")
    quantize(t, g.elements, o)
    if gathered is not None:
        size = float(m * n * (1 if o.products else g.itemsize))
        _gather_beside(t, size, gathered, o)
    grad = t.empty(x.shape, x.itemsize)
    gemm(t, m, k, n, "nn", o)
    if gathered is not None:
        t.wait(t.record(STREAM))
    weight_gradient(t, n, k, m, o, (g, x))
    return [grad, Tensor(None, w.shape)]


def _gather_beside(t: Tape, size: float, group: Group, o: Numbers) -> None:
    """The gather in front of a GEMM: before it, or beside it as a ring of exchanges.

    The GEMM begins with the part that lies here; copy engines move the others (Transformer Engine, ring_exchange).
    """
    if not o.overlap:
        begin(t, "all_gather", size, group)
        t.wait(t.record(STREAM))
        return
    begin(t, "all_gather", size, group, copied=True)


def _scatter_beside(t: Tape, m: int, n: int, k: int, group: Group, o: Numbers) -> None:
    """A GEMM in parts, each reduce-scattered while the next is computed."""
    for _ in range(SPLITS):
        gemm(t, max(1, m // SPLITS), n, k, "nt", o)
        begin(t, "reduce_scatter", 2.0 * m * n / SPLITS, group, copied=True)
    t.wait(t.record(STREAM))


def weight_gradient(
    t: Tape, n: int, k: int, m: int, o: Numbers, kept: tuple[Tensor, ...] = ()
) -> None:
    """The weight's gradient, added to the buffer that accumulates it; put off, it keeps its operands till then."""
    later(t, lambda: _weight_gradient(t, n, k, m, o), kept)


def later(t: Tape, launch: Callable[[], None], kept: tuple[Tensor, ...]) -> None:
    """Runs ``launch`` now, or, where weight gradients are put off, when they come; ``kept`` lives till then."""
    if t.deferred is None:
        launch()
        return

    def put_off(_: tuple[Tensor, ...] = kept) -> None:
        launch()

    t.deferred.append(put_off)


def _weight_gradient(t: Tape, n: int, k: int, m: int, o: Numbers) -> None:
    gemm(t, n, k, m, "tn", o)
    moved = float(2 + 2 * o.wide) if o.added is None else o.added
    if not o.fused_accumulation and moved:
        t.launch(Kernel("fused", (n * k,), bytes=n * k * moved))


def begin(t: Tape, op: str, size: float, group: Group, copied: bool = False) -> None:
    """A collective on the group's stream, after the compute so far; who needs it waits."""
    group.collective(t, op, size, STREAM, "functional_collective", copied=copied)


def gather(t: Tape, x: Tensor, group: Group) -> None:
    begin(t, "all_gather", x.size * group.size, group)
    t.wait(t.record(STREAM))


def reduce(t: Tape, y: Tensor, group: Group, sequence: bool) -> None:
    begin(t, "reduce_scatter" if sequence else "all_reduce", y.size, group)
    t.wait(t.record(STREAM))


def again(t: Tape, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Keeps only the input of a region, which runs again before its backward (tensor_parallel.checkpoint)."""
    with t.no_grad():
        out = run(x)
    kept = Tensor(x.storage, x.shape, x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        kept.requires_grad, kept.name = True, "detached"
        y = run(kept)
        t.backward(y, g)
        grad, kept.grad = kept.grad, None
        return [grad]

    return t.apply(out, [x], backward)


def discarded(
    t: Tape, run: Callable[[Tensor], Tensor], x: Tensor, apart: bool
) -> Tensor:
    """``run(x)``; where ``apart``, its result is not kept but made again in backward."""
    y = run(x)
    kept = Tensor(x.storage, x.shape, x.itemsize)
    return replayed(t, y, lambda: run(kept)) if apart else y


def replayed(t: Tape, y: Tensor, run: Callable[[], object]) -> Tensor:
    """A value that nobody keeps: ``run`` makes it again before its backward (CheckpointWithoutOutput)."""

    def backward(g: Tensor) -> list[Tensor | None]:
        with t.no_grad():
            run()
        return [g]

    return t.apply(Tensor(None, y.shape, y.itemsize), [unsaved(y)], backward)


def unsaved(x: Tensor) -> Tensor:
    """The same value for an operator that does not save it."""
    y = Tensor(None, x.shape, x.itemsize, x.node)
    y.requires_grad = x.requires_grad
    return y
