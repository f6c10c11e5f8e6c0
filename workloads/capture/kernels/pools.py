"""Pooling and resampling of images."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.kernels.convolution import memory_format
from prestep.workloads.capture.kernels.tensors import first, launched
from prestep.workloads.capture.operation import Operation

POOLS = (
    "max_pool2d_with_indices",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
    "upsample_bicubic2d",
    "im2col",
    "col2im",
    "grid_sampler_2d",
)
#: Of these a thread writes a pixel of all pictures and channels one after the other, if these lie in that order.
RESAMPLED = ("upsample_nearest2d", "upsample_bilinear2d")


def image(operation: Operation) -> tuple[Kernel, ...]:
    """(elements read, elements written)."""
    source = first(operation)
    result = operation.results[0] if operation.results else source
    layout = memory_format(source) if len(source.shape) == 4 else ""
    return launched(operation, (source.elements, result.elements), layout, source.dtype)


def resampled(operation: Operation) -> tuple[Kernel, ...]:
    """(pictures times channels, pixels read of each, pixels written)."""
    source = first(operation)
    result = operation.results[0] if operation.results else source
    planes = source.shape[0] * source.shape[1]
    shape = planes, source.elements // planes, result.elements // planes
    return launched(operation, shape, memory_format(source), source.dtype)


RULES = {
    **dict.fromkeys((*POOLS, *(f"{name}_backward" for name in POOLS)), image),
    **dict.fromkeys(
        (*RESAMPLED, *(f"{name}_backward" for name in RESAMPLED)), resampled
    ),
}
