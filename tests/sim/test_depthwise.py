"""Convolutions with a filter for each channel of a sequence, as LFM2 has them, against kernels of an H200."""

from __future__ import annotations

import pytest

from prestep.sim.costs import load_gpu
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.rules import kernels_of

#: Batch, channels, tokens, taps; microseconds of conv_depthwise2d_forward_kernel_generic, and of both its gradients'
#: kernels together: torch.profiler, PyTorch 2.11, one H200, bf16, five runs.
MEASURED = [
    ((1, 1024, 4096, 3), 43.7, 66.0),
    ((1, 2048, 2048, 3), 43.9, 65.4),
    ((1, 2048, 4096, 3), 84.8, 123.4),
    ((1, 2048, 8192, 3), 170.7, 245.6),
    ((1, 4096, 4096, 3), 170.7, 237.4),
    ((4, 2048, 4096, 3), 338.4, 445.2),
    ((1, 2048, 4096, 4), 87.9, 140.6),
]


def duration(name: str, arguments: tuple[object, ...], *results: Operand) -> float:
    """Microseconds of the convolution alone, without copies before it."""
    operation = Operation(name, arguments, (), results)  # type: ignore[arg-type]
    kernels = [k for k in kernels_of(operation) if "convolution" in k.kind]
    return 1e6 * sum(map(load_gpu("h200").duration, kernels))


@pytest.mark.parametrize(("sizes", "ahead", "back"), MEASURED)
def test_a_filter_for_each_channel_takes_as_long_as_measured(
    sizes: tuple[int, int, int, int], ahead: float, back: float
) -> None:
    """Within a factor of two: no row of this kind is in the tables."""
    batch, channels, tokens, taps = sizes
    x = Operand("bf16", (batch, channels, tokens), (channels * tokens, 1, channels))
    g = Operand("bf16", (batch, channels, tokens + taps - 1))
    w = Operand("bf16", (channels, 1, taps))
    steps = (1,), (taps - 1,), (1,), False, (0,), channels
    forward = duration("aten.convolution.default", (x, w, None, *steps), g)
    mask = True, True, False
    arguments = g, x, w, (0,), *steps, mask
    backward = duration("aten.convolution_backward.default", arguments, x, w)
    assert ahead / 2 < forward < 2 * ahead
    assert back / 2 < backward < 2 * back
