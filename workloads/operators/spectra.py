"""Fourier transforms by cuFFT: every dimension is a pass over all elements."""

from __future__ import annotations

from math import log2, prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operation
from prestep.workloads.operators.tensors import (
    argument,
    first,
    integers,
    launched,
    stored,
)


def transform(operation: Operation) -> tuple[Kernel, ...]:
    """(transforms, points of each); the dimensions are the second argument.

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


RULES = dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), transform)
