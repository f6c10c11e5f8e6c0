"""Sums, means, extremes and norms over dimensions; sums along one; Fourier transforms."""

from __future__ import annotations

from itertools import pairwise
from math import log2, prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operand, Operation, words
from prestep.workloads.operators.tensors import (
    argument,
    base,
    first,
    integers,
    launched,
    stored,
    strides_of,
)

#: Place of the dimensions among the arguments, where it is not the second.
DIMENSIONS = {"linalg_vector_norm": 2, "norm": 2}
NAMES = words(
    "all amax amin aminmax any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean median "
    "min nansum norm prod std std_mean sum var var_mean"
)


def reduction(operation: Operation) -> tuple[Kernel, ...]:
    """(results, elements of each); "outer" where neighbours in memory belong to different results.

    "split" where what is reduced lies on both sides of what is kept, in short pieces: a bias's gradient of a picture;
    "outer_channels" with channels last, which takes up to three times as long as a matrix (measured: 128 by 147,456).
    """
    whole = first(operation)
    if len([each for each in operation.operands if each.elements > 1]) > 1:
        return launched(operation, (whole.elements,))  # max and min of two tensors
    rank = len(whole.shape)
    given = integers(argument(operation, DIMENSIONS.get(base(operation), 1), "dim"))
    dims = {at % rank for at in given} if rank else set()
    dims = dims or set(range(rank))
    columns = prod(whole.shape[at] for at in dims)
    rows = whole.elements // max(1, columns)
    across = rows > 1 and not _innermost(operation, dims)
    apart = _is_split(whole, dims)
    layout = "outer" + "_channels" * apart if across else "split" * apart
    kernels = launched(operation, (rows, columns), layout)
    return *(_gathered(whole, dims) if across else ()), *kernels


def _gathered(whole: Operand, dims: set[int]) -> tuple[Kernel, ...]:
    """Reading across, where what is reduced does not lie in one piece: as a copy that turns it round.

    Measured in traces: heads that were transposed (all of (batch, length, heads) reduced) take as long as with a copy,
    pictures in channels-last order (height and width reduced) no longer than without.
    """
    if _in_one_piece(whole, dims):
        return ()
    call = Operation("aten.copy_.default", (whole,))
    return launched(
        call,
        (whole.elements,),
        "transposed",
        whole.dtype,
        "copy",
        size=2.0 * whole.bytes,
    )


def _in_one_piece(whole: Operand, dims: set[int]) -> bool:
    """Whether neighbours among the reduced dimensions follow each other in memory, as they do in the tensor."""
    strides = strides_of(whole)
    reduced = [at for at in sorted(dims) if whole.shape[at] > 1]
    return all(
        strides[outer] == strides[inner] * whole.shape[inner]
        for outer, inner in pairwise(reduced)
    )


def _is_split(whole: Operand, dims: set[int]) -> bool:
    """Whether a dimension that is kept lies between reduced ones."""
    real = [at for at, size in enumerate(whole.shape) if size > 1]
    reduced = [at for at in real if at in dims]
    return bool(reduced) and len(reduced) < sum(
        reduced[0] <= at <= reduced[-1] for at in real
    )


def _innermost(operation: Operation, dims: set[int]) -> bool:
    """Whether a reduced dimension has neighbours in memory."""
    whole = first(operation)
    pairs = zip(range(len(whole.shape)), whole.shape, strides_of(whole), strict=True)
    steps = {at: stride for at, size, stride in pairs if size > 1}
    if not steps:
        return True
    return min(steps, key=lambda at: steps[at]) in dims


def scan(operation: Operation) -> tuple[Kernel, ...]:
    """cumsum and its like along a dimension: (lines, length)."""
    whole = first(operation)
    at = (integers(argument(operation, 1, "dim")) or (-1,))[0]
    length = whole.shape[at] if whole.shape else 1
    inner = at in (-1, len(whole.shape) - 1)
    shape = (whole.elements // max(1, length), length)
    return launched(
        operation,
        shape,
        "" if inner else "outer",
        kind=base(operation).removesuffix("_"),
    )


def transform(operation: Operation) -> tuple[Kernel, ...]:
    """(transforms, points of each) by cuFFT: every dimension is a pass over all elements.

    Flops of a transform of n points: 5 n log2 n, as cuFFT's and FFTW's benchmarks count them, half for real ones.
    """
    source = first(operation)
    result = operation.results[0] if operation.results else source
    rank = len(source.shape)
    dims = {at % rank for at in integers(argument(operation, 1, "dim"))} or {rank - 1}
    # The larger side of a transform between real and complex numbers has all points.
    full = max(source, result, key=lambda each: each.elements)
    points = prod(full.shape[at] for at in dims)
    size = len(dims) * (stored(source) + stored(result))
    flops = 5.0 * full.elements * log2(max(2, points))
    real = "r2c" in operation.name or "c2r" in operation.name
    return launched(
        operation,
        (full.elements // max(1, points), points),
        dtype={"complex128": "fp64"}.get(source.dtype, "fp32"),
        flops=flops / (1 + real),
        size=float(size),
    )


RULES = {
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), transform),
    **dict.fromkeys(NAMES, reduction),
    **dict.fromkeys(
        ("cumsum", "cumsum_", "cumprod", "logcumsumexp", "cummax", "cummin"), scan
    ),
}
