"""Convolutions: cuDNN, in the memory format of the operands."""

from __future__ import annotations

from math import prod

from sim.graph.kernel import Kernel
from workloads.capture.kernels.tensors import (
    argument,
    format_of,
    integers,
    launched,
    strides_of,
    tensor,
)
from workloads.capture.operation import Operand, Operation


def memory_format(image: Operand) -> str:
    """ "channels_last" where channels lie next to each other."""
    return "channels_last" if strides_of(image)[1] == 1 and image.shape[1] > 1 else ""


def _shape(
    image: Operand, weight: Operand, stride: tuple[int, ...], groups: int
) -> tuple[int, ...]:
    """(batch, channels, height, width, filters, kernel height, width, stride, groups); 1-D ones have height 1."""
    n, c, *sides = image.shape
    k, _, *kernel = weight.shape
    height, width = (1, *sides)[-2:]
    return (
        n,
        c,
        prod((height, *sides[:-2])),
        width,
        k,
        *(1, *kernel)[-2:],
        (stride or (1,))[0],
        groups,
    )


def _flops(outputs: Operand, weight: Operand) -> float:
    """Of one pass: every output pixel is a product over the filter."""
    pixels = outputs.elements / max(1, outputs.shape[1])
    return 2.0 * pixels * weight.elements


def _groups(operation: Operation, at: int) -> int:
    return (integers(argument(operation, at, "groups")) or (1,))[0]


def forward(operation: Operation) -> tuple[Kernel, ...]:
    """convolution(image, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    image, weight = tensor(operation, 0), tensor(operation, 1)
    if image is None or weight is None or not operation.results:
        return launched(operation, (1,))
    stride = integers(argument(operation, 3, "stride"))
    shape = _shape(image, weight, stride, _groups(operation, 8))
    flops = _flops(operation.results[0], weight)
    return launched(
        operation, shape, memory_format(image), format_of(image, operation), flops=flops
    )


def backward(operation: Operation) -> tuple[Kernel, ...]:
    """convolution_backward(gradient, image, weight, bias sizes, stride, ..., groups, output mask)."""
    gradient, image, weight = (tensor(operation, at) for at in range(3))
    if gradient is None or image is None or weight is None:
        return launched(operation, (1,))
    stride = integers(argument(operation, 4, "stride"))
    shape = _shape(image, weight, stride, _groups(operation, 9))
    mask = argument(operation, 10, "output_mask")
    passes = sum(map(bool, mask[:2])) if isinstance(mask, tuple) else 2
    flops = max(1, passes) * _flops(gradient, weight)
    return launched(
        operation, shape, memory_format(image), format_of(image, operation), flops=flops
    )


RULES = {
    "convolution": forward,
    "cudnn_convolution": forward,
    "_convolution": forward,
    "convolution_overrideable": forward,
    "convolution_backward": backward,
}
