"""Pooling and resampling of images."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.capture.kernels.convolution import memory_format
from workloads.capture.kernels.tensors import first, launched
from workloads.capture.operation import Operation

NAMES = (
    "max_pool2d_with_indices",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
    "upsample_nearest2d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "im2col",
    "col2im",
    "grid_sampler_2d",
)


def image(operation: Operation) -> tuple[Kernel, ...]:
    """(elements read, elements written)."""
    source = first(operation)
    result = operation.results[0] if operation.results else source
    layout = memory_format(source) if len(source.shape) == 4 else ""
    return launched(operation, (source.elements, result.elements), layout, source.dtype)


RULES = dict.fromkeys((*NAMES, *(f"{name}_backward" for name in NAMES)), image)
