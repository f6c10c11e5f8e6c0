"""Operators of the symbolic PyTorch: each launches the kernels that eager PyTorch launches.

Kernel lists were read off Kineto traces of PyTorch 2.11 on H200 (``validation/cases/h200``); every
operator says what it saves for backward, because that is what memory is made of.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.graph.kernel import Kernel
from workloads.torch.reductions import row_sum_scratch
from workloads.torch.tape import Tape, Tensor


def linear(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T (+ bias)``: saves its input."""
    out_features, k = w.shape
    m = x.elements // k
    t.cpu("linear")
    t.saves()
    # the blocks\' layers by Transformer Engine; the head is plain
    dtype = t.products if t.layer >= 0 else ""
    kind = "gemm" if bias is None or dtype else "gemm_bias"
    quantize(t, dtype, x.elements, w.elements)
    launch_gemm(t, kind, m, out_features, k, "nt", dtype)
    y = t.empty((*x.shape[:-1], out_features), x.itemsize)
    needs_x = x.requires_grad

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("linear_backward")
        quantize(t, dtype, g.elements)

        def weight_grad() -> Tensor:
            grad = t.empty(w.shape, x_saved.itemsize)
            launch_gemm(t, "gemm", out_features, k, m, "tn", dtype)
            _ = g
            return grad

        def data_grad() -> Tensor | None:
            if not needs_x:
                return None
            grad = t.empty(x_saved.shape, x_saved.itemsize)
            launch_gemm(t, "gemm", m, k, out_features, "nn", dtype)
            return grad

        # Autograd computes a node's gradients in the alphabetical order of the operator's argument names:
        # mm(self, mat2) has the weight's first, addmm(self = bias, mat1, mat2) the input's.
        if bias is None:
            gw = later(t, w, weight_grad)
            return [data_grad(), gw]
        gx, gw = data_grad(), later(t, w, weight_grad)
        gb = t.empty(bias.shape, x_saved.itemsize)
        t.launch(Kernel("sum", (g.elements,), bytes=g.size))
        t.scratch(row_sum_scratch(m, out_features))
        return [gx, gb, gw]

    x_saved = x
    # The input comes first: its gradient is merged before the leaves' hooks run.
    return t.apply(y, [x, w] if bias is None else [x, bias, w], backward)


# cuBLAS resets the tile counter of its dynamically scheduled kernels: seen above two tiles (256x128) per SM.
DYNAMIC_GEMM_OUTPUT = 2 * 132 * 256 * 128


def later(t: Tape, w: Tensor, weight_grad: Callable[[], Tensor]) -> Tensor | None:
    """The weight gradient now, or put off when only input gradients are wanted (zero-bubble schedules)."""
    if not w.requires_grad:
        return None
    if t.deferred is None:
        return weight_grad()
    t.deferred.append(lambda: t.accumulate(w, weight_grad()))
    return None


def quantize(t: Tape, dtype: str, *elements: int) -> None:
    """Operands of a quantized product: each read in bf16, written as it is and transposed (products take rows only).

    In NVFP4 each is read once more for its scale and rotated (random Hadamard transform): as many bytes as in fp8.
    """
    for n in elements if dtype else ():
        t.cpu("quantize")
        launch_elementwise(t, "fused", n, 4.0 * n)


def launch_gemm(
    t: Tape, kind: str, m: int, n: int, k: int, layout: str, dtype: str = ""
) -> None:
    """A GEMM as cuBLAS launches it, in bf16 where nothing is said."""
    if dtype:
        moved = 1.0 * (m * k + n * k) + 2.0 * m * n
        t.launch(
            Kernel(
                kind,
                (m, n, k),
                dtype=dtype,
                layout=layout,
                flops=2.0 * m * n * k,
                bytes=moved,
            )
        )
        return
    if m * n > DYNAMIC_GEMM_OUTPUT:
        t.launch(Kernel("memset", (4,), bytes=4.0))
    t.launch(
        Kernel(
            kind,
            (m, n, k),
            layout=layout,
            flops=2.0 * m * n * k,
            bytes=2.0 * (m * k + n * k + m * n),
        )
    )


def launch_elementwise(t: Tape, kind: str, elements: int, moved: float) -> None:
    t.launch(Kernel(kind, (elements,), bytes=moved))


def add(t: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Residual addition: saves nothing, passes its gradient to both sides."""
    t.cpu("elementwise")
    launch_elementwise(t, "add", a.elements, 3 * a.size)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward")
        return [g, g]

    return t.apply(t.empty(a.shape, a.itemsize), [a, b], backward)


def mul(t: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Elementwise product of equal shapes: saves both factors."""
    t.cpu("elementwise")
    launch_elementwise(t, "mul", a.elements, 3 * a.size)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward", 2)
        launch_elementwise(t, "mul", a.elements, 3 * a.size)
        ga = t.empty(a.shape, a.itemsize)
        launch_elementwise(t, "mul", a.elements, 3 * a.size)
        return [ga, t.empty(b.shape, b.itemsize)]

    return t.apply(t.empty(a.shape, a.itemsize), [a, b], backward)


def activation(t: Tape, kind: str, x: Tensor) -> Tensor:
    """silu, gelu or relu: saves its input (relu its output)."""
    t.cpu("elementwise")
    launch_elementwise(t, kind, x.elements, 2 * x.size)
    y = t.empty(x.shape, x.itemsize)
    saved = y.view(*y.shape) if kind == "relu" else x
    shape, itemsize = x.shape, x.itemsize
    back = "threshold_backward" if kind == "relu" else f"{kind}_backward"

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        launch_elementwise(t, back, g.elements, 3 * g.size)
        _ = saved
        return [t.empty(shape, itemsize)]

    return t.apply(y, [x], backward)


def norm(t: Tape, kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    """RMSNorm or LayerNorm over the last axis: saves its input and one statistic per row."""
    rows, cols = x.elements // x.shape[-1], x.shape[-1]
    t.cpu("norm")
    t.saves()
    t.launch(Kernel(f"{kind}_norm_fwd", (rows, cols), bytes=2 * x.size))
    stat = t.empty((rows,), 4)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("norm_backward")
        split = t.deferred is not None
        t.launch(
            Kernel(
                f"{kind}_norm_bwd" + ("_input" if split else ""),
                (rows, cols),
                bytes=3 * x.size,
            )
        )
        if kind == "layer" and t.choices is not None and not t.choices.since(2, 7):
            # The weights' gradient by a kernel of few thread blocks: as long again (fitted, see docs/published.md).
            t.launch(Kernel("fused", (rows, cols), bytes=3 * x.size))
        gx = t.empty(x.shape, x.itemsize)

        def weight_grads() -> Tensor:
            if split:
                t.launch(
                    Kernel(f"{kind}_norm_bwd_weight", (rows, cols), bytes=2 * x.size)
                )
            _ = (stat, g)
            return t.empty(weights[0].shape, weights[0].itemsize)

        first = later(t, weights[0], weight_grads)
        rest: list[Tensor | None] = [
            t.empty(w.shape, w.itemsize) if first is not None else None
            for w in weights[1:]
        ]
        return [gx, first, *rest]

    return t.apply(t.empty(x.shape, x.itemsize), [x, *weights], backward)


def embedding(t: Tape, ids: tuple[int, int], w: Tensor) -> Tensor:
    """Row lookup; backward sorts the ids and scatters (PyTorch's dense embedding gradient)."""
    vocab, hidden = w.shape
    tokens = ids[0] * ids[1]
    t.cpu("embedding")
    y = t.empty((*ids, hidden), w.itemsize)
    t.launch(Kernel("embedding_fwd", (tokens, hidden, vocab), bytes=2 * y.size))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("embedding_backward")
        gw = t.empty(w.shape, w.itemsize)
        launch_elementwise(t, "fill", w.elements, w.size)
        t.launch(Kernel("embedding_bwd", (tokens, hidden, vocab)))
        return [gw]

    return t.apply(y, [w], backward)


def add_rows(t: Tape, x: Tensor, rows: Tensor) -> Tensor:
    """``x + rows``, the same rows (1, seq, hidden) for every sample: their gradient is summed over the batch."""
    t.cpu("elementwise")
    launch_elementwise(t, "add", x.elements, 2 * x.size + rows.size)
    shape, itemsize, batch = rows.shape, rows.itemsize, x.shape[0]

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward")
        if batch == 1:
            return [g, g]
        summed = t.empty(shape, itemsize)
        t.launch(Kernel("sum", (g.elements,), bytes=g.size))
        return [g, summed]

    return t.apply(t.empty(x.shape, x.itemsize), [x, rows], backward)


def cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    """log_softmax then nll_loss: saves the log-probabilities (as large as the logits)."""
    vocab = logits.shape[-1]
    tokens = logits.elements // vocab
    shape, itemsize = logits.shape, logits.itemsize
    t.cpu("loss")
    t.launch(Kernel("log_softmax_fwd", (tokens, vocab), bytes=2 * logits.size))
    logp = t.empty(shape, itemsize)
    t.launch(Kernel("nll_loss_fwd", (tokens, vocab), bytes=32.0 * tokens))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("loss_backward")
        launch_elementwise(t, "fill", tokens * vocab, logp.size)
        picked = t.empty(shape, itemsize)
        t.launch(Kernel("nll_loss_bwd", (tokens, vocab), bytes=32.0 * tokens))
        t.launch(Kernel("log_softmax_bwd", (tokens, vocab), bytes=3 * logp.size))
        out = t.empty(shape, itemsize)
        del picked
        return [out]

    return t.apply(t.empty((1,), itemsize), [logits], backward)


def mse_loss(t: Tape, x: Tensor) -> Tensor:
    """Mean squared error against a target of the same shape: saves its input."""
    t.cpu("loss")
    t.launch(Kernel("mse_loss", (x.elements,), bytes=3 * x.size))
    squares = t.empty(x.shape, x.itemsize)
    t.launch(Kernel("sum", (x.elements,), bytes=x.size))
    del squares

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("loss_backward")
        grad = t.empty(x.shape, x.itemsize)
        launch_elementwise(t, "fill", x.elements, x.size)
        launch_elementwise(t, "mse_backward", x.elements, 4 * x.size)
        return [grad]

    return t.apply(t.empty((1,), x.itemsize), [x], backward)
