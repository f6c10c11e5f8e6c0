"""Convolutions: cuDNN, in the memory format of the operands."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Argument, Operand, Operation, words
from prestep.workloads.operators.copies import copied
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.operators.reductions import reduction
from prestep.workloads.operators.tensors import (
    argument,
    contiguous,
    follows,
    format_of,
    integers,
    launched,
    memory_format,
    strides_of,
    tensor,
)

#: By which of the gradients of picture and filter are wanted: the word of the layout where one is not.
GRADIENTS: dict[tuple[Argument, ...], str] = {
    (False, True): "filter",
    (True, False): "picture",
}

#: Pixels from one to the furthest that a filter with gaps sees, from which on cuDNN's usual kernels can not be used.
REACH = 16


def _with_copies(operands: tuple[Operand, ...]) -> tuple[str, tuple[Kernel, ...]]:
    """The memory format that cuDNN is called in, and what copies operands of another one."""
    last, others = _formatted(operands)
    sequence = others and len(operands[0].shape) == 3  # its copies lie in order
    given = "" if sequence else memory_format(operands[0])
    layout = "channels_last" if last else given
    return layout, tuple(kernel for pair in others for kernel in copied(*pair))


def _formatted(
    operands: tuple[Operand, ...],
) -> tuple[bool, list[tuple[Operand, Operand]]]:
    """Whether cuDNN is called with channels last, and each operand that lies otherwise with its copy.

    A picture or a filter whose channels lie next to each other is enough for all to be copied so, a gradient is not
    (ATen/native/ConvUtils.h). Many 1x1 filters and those of single channels lie in both formats at once. Elsewhere
    operands are made contiguous.
    """
    pictures = [each for each in operands if len(each.shape) == 4]
    last = any(map(_only_channels_last, pictures[:2]))
    wanted = _channels_last if last else _in_order
    targets = [(each, wanted(each)) for each in (pictures if last else operands)]
    return last, [pair for pair in targets if not follows(pair[0], pair[1].strides)]


def _in_order(operand: Operand) -> Operand:
    return replace(operand, strides=contiguous(operand.shape))


def _is_swapped(operands: tuple[Operand, ...]) -> bool:
    """Whether pictures are channels: a filter's gradient as a convolution, which gradients of gradients ask for."""
    return any(
        strides_of(each)[0] < strides_of(each)[1]
        for each in operands
        if each.shape[0] > 1 < each.shape[1]
    )


def _only_channels_last(operand: Operand) -> bool:
    wanted = _channels_last(operand).strides
    return follows(operand, wanted) and not follows(operand, contiguous(operand.shape))


def _channels_last(operand: Operand) -> Operand:
    _, channels, height, width = operand.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return replace(operand, strides=strides)


def _shape(
    image: Operand,
    weight: Operand,
    stride: tuple[int, ...],
    groups: int,
    transposed: Argument,
) -> tuple[int, ...]:
    """(batch, channels, height, width, filters, kernel height, width, stride, groups).

    1-D ones have height 1; those in space have their depth times their height. Where strides differ, as those of a
    video's patches do, the stride is the last one, of a picture as high as has as many results.
    """
    n, c, *sides = image.shape
    k, per_group, *kernel = weight.shape
    if transposed is True:
        k = per_group * groups
    tall, high, last = prod(sides[:-1]), prod(kernel[:-1]), (stride or (1,))[-1]
    if len(set(stride)) > 1 and transposed is not True:
        tall = max(1, tall * last**2 // prod(stride))
    return n, c, tall, sides[-1], k, high, kernel[-1], last, groups


def _flops(pixels: Operand, weight: Operand) -> float:
    """Of one pass: every output pixel is a product over the filter; every input pixel of a transposed one."""
    return 2.0 * pixels.elements / max(1, pixels.shape[1]) * weight.elements


def _kind(
    layout: str,
    transposed: Argument,
    shape: tuple[int, ...],
    gaps: str,
) -> str:
    """What cuDNN chooses kernels by: memory format, whether a picture is enlarged, one picture in groups, gaps.

    One picture in groups is what vmap makes of filters that differ from picture to picture; gaps are a filter's. A
    filter for each channel of one sequence (LFM2) is none of these: PyTorch's own kernels run, as for any batch.
    """
    batch, channels, *_, groups = shape
    depthwise = groups == channels == shape[4]
    apart = (
        "transposed" * (transposed is True),
        "samples" * (batch == 1 < groups and not depthwise),
        gaps,
    )
    return "_".join(filter(None, (layout, *apart)))


def _gaps(operation: Operation, weight: Operand, at: int) -> str:
    """Whether a filter has gaps, and whether it looks further from a pixel than cuDNN's usual kernels can.

    From 16 pixels on others run, as slow as a fifth: measured on an H200 with filters of 2 to 7 and gaps of 1 to 64.
    """
    gaps = integers(argument(operation, at + 1, "dilation"))
    if not any(gap > 1 for gap in gaps):
        return ""
    padding = integers(argument(operation, at, "padding")) or (0,)
    around = padding if len(padding) == len(gaps) else padding[:1] * len(gaps)
    furthest = max(
        max(gap, before, gap * (taps - 1) - before)
        for gap, before, taps in zip(gaps, around, weight.shape[2:], strict=False)
    )
    return "far" if furthest >= REACH else "dilated"


def _groups(operation: Operation, at: int) -> int:
    return (integers(argument(operation, at, "groups")) or (1,))[0]


def forward(operation: Operation) -> tuple[Kernel, ...]:
    """convolution(image, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    image, weight = tensor(operation, 0), tensor(operation, 1)
    if image is None or weight is None or not operation.results:
        return launched(operation, (1,))
    stride = integers(argument(operation, 3, "stride"))
    transposed = argument(operation, 6, "transposed")
    shape = _shape(image, weight, stride, _groups(operation, 8), transposed)
    pixels = image if transposed is True else operation.results[0]
    flops = _flops(pixels, weight)
    layout, copies = _with_copies((image, weight))
    swapped = _is_swapped((image, weight)) and not layout
    gaps = _gaps(operation, weight, 4)
    layout = "swapped" if swapped else _kind(layout, transposed, shape, gaps)
    kind = format_of(image, operation)
    convolved = launched(operation, shape, layout, kind, flops=flops)
    return *copies, *convolved, *_biased(operation)


def _biased(operation: Operation) -> tuple[Kernel, ...]:
    """The bias of every channel, added in place: cuDNN is called without it (ATen/native/cudnn/ConvShared.cpp)."""
    bias, result = tensor(operation, 2), operation.results[0]
    if bias is None:
        return ()
    ones = (1,) * (len(result.shape) - 2)
    along = replace(bias, shape=(1, *bias.shape, *ones), strides=())
    return elementwise(Operation("aten.add_.Tensor", (result, along), (), (result,)))


def backward(operation: Operation) -> tuple[Kernel, ...]:
    """convolution_backward(gradient, image, weight, bias sizes, stride, ..., groups, output mask)."""
    gradient, image, weight = (tensor(operation, at) for at in range(3))
    if gradient is None or image is None or weight is None:
        return launched(operation, (1,))
    stride = integers(argument(operation, 4, "stride"))
    transposed = argument(operation, 7, "transposed")
    shape = _shape(image, weight, stride, _groups(operation, 9), transposed)
    mask = argument(operation, 10, "output_mask")
    passes = sum(map(bool, mask[:2])) if isinstance(mask, tuple) else 2
    flops = max(1, passes) * _flops(image if transposed is True else gradient, weight)
    layout, copies = _with_copies((image, weight, gradient))
    gaps = _gaps(operation, weight, 5)
    wanted = GRADIENTS.get(mask[:2], "") if isinstance(mask, tuple) else ""
    layout = "_".join(filter(None, (_kind(layout, transposed, shape, gaps), wanted)))
    kind = format_of(image, operation)
    convolved = launched(operation, shape, layout, kind, flops=flops)
    with_bias = isinstance(mask, tuple) and len(mask) > 2 and bool(mask[2])
    return *copies, *convolved, *(_summed(gradient) if with_bias else ())


def scratch(operation: Operation) -> float:
    """Bytes that a convolution takes while it runs: its pictures, copied to channels last and back for tensor cores.

    Measured on an H200: 1.00 to 1.14 (median by kind) of what forward reads and writes, and backward reads.
    Layers of single pixels, of one channel a group and with a filter for every picture, and fp32, take next to nothing.
    Operands in another memory format are copied before, which stays as long.
    """
    is_backward = operation.name.startswith("aten.convolution_backward")
    return _copied_bytes(operation, is_backward) + _turned_bytes(operation, is_backward)


def _copied_bytes(operation: Operation, is_backward: bool) -> float:
    """Of pictures and filters that are copied into cuDNN's memory format."""
    given = (tensor(operation, at) for at in range(3 if is_backward else 2))
    operands = tuple(each for each in given if each is not None)
    if len(operands) < 2:
        return 0.0
    others = (each for each, _ in _formatted(operands)[1])
    return float(sum(each.bytes for each in others if len(each.shape) == 4))


def _turned_bytes(operation: Operation, is_backward: bool) -> float:
    """Of pictures that cuDNN itself turns to channels last and back."""
    launches = (backward if is_backward else forward)(operation)
    whole = [each for each in launches if "convolution" in each.kind]
    if not whole or len(whole[-1].shape) != 9:
        return 0.0
    _, channels, _, _, _, high, wide, _, groups = whole[-1].shape
    apart = ("channels_last", "samples")
    single = high * wide == 1 or groups == channels
    if single or whole[-1].dtype == "fp32" or any(n in whole[-1].layout for n in apart):
        return 0.0
    pictures = operation.operands[:2] if is_backward else _pictures(operation)
    return float(sum(each.bytes for each in pictures))


def _pictures(operation: Operation) -> tuple[Operand, ...]:
    return operation.operands[0], operation.results[0]


def _summed(gradient: Operand) -> tuple[Kernel, ...]:
    """The gradient of the bias: sums over all but the channels."""
    every = tuple(at for at in range(len(gradient.shape)) if at != 1)
    channels = Operand(gradient.dtype, gradient.shape[1:2], device=gradient.device)
    return reduction(
        Operation("aten.sum.dim_IntList", (gradient, every), (), (channels,))
    )


RULES = {
    **dict.fromkeys(
        words("convolution cudnn_convolution _convolution convolution_overrideable"),
        forward,
    ),
    "convolution_backward": backward,
}
