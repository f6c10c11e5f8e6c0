"""The ATen operation that an event of a Kineto trace was, and the kernel that PyTorch launched for it.

A trace has an operation's arguments and not what it returned: that is worked out for the operations whose arguments
say it, and only these are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prestep.sim.costs.estimators.attention import FORMATS, plain
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel, plain_product
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators import (
    attention,
    copies,
    foreach,
    losses,
    norms,
    pointwise,
    products,
)
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import contiguous, dense

Event = dict[str, Any]
COLUMNS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
#: Element types as Kineto writes them.
DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
    "unsigned char": "uint8",
}
#: Operations that return a tensor like their first one.
LIKE_FIRST = (*norms.RULES, *losses.SOFTMAXES)
#: Operations that return nothing new, or whose kernels follow from the arguments alone.
NOTHING_NEW = (*products.RULES, *copies.RULES, *foreach.RULES, "nll_loss_forward")
#: Lists of tensors carry no element type: those of training are of this one.
LISTED = "bf16"


def classify(op: Event) -> Kernel | None:
    """The kernel of an operation, plain as models have it; None of those that are not read, or that launch several."""
    try:
        operation = operation_of(op)
        kernels = kernels_of(operation) if operation is not None else ()
    except (InputError, LookupError, TypeError, ValueError):
        return None  # an operation without shapes, or with arguments of another version
    if len(kernels) != 1:
        return None
    (kernel,) = kernels
    if kernel.is_attention and kernel.dtype in FORMATS:
        return plain(kernel)
    return plain_product(kernel)


def operation_of(op: Event) -> Operation | None:
    """The operation of an event; None where its results cannot be told.

    Examples
    --------
    >>> args = {"Input Dims": [[8, 4], []], "Input Strides": [[4, 1], []], "Input type": ["c10::BFloat16", "Scalar"]}
    >>> operation_of({"name": "aten::clamp_min_", "args": args | {"Concrete Inputs": ["", "0"]}}).name
    'aten.relu_.default'
    """
    columns = (op["args"][key] for key in COLUMNS)
    arguments = tuple(_argument(*each) for each in zip(*columns, strict=True))
    name = op["name"].removeprefix("aten::")
    if name in INNER:
        return INNER[name](arguments)
    if name in pointwise.RULES:
        results: tuple[Operand, ...] = (_broadcast(arguments),)
    elif name in NOTHING_NEW:
        results = ()
    elif name in LIKE_FIRST:
        results = (_first(arguments),)
    else:
        return None
    return Operation(f"aten.{name}.default", arguments, (), results)


def _argument(dims: Any, strides: Any, kind: str, value: str) -> Argument:
    """A tensor, a list of tensors, or a number, a list of numbers or a text; None for nothing."""
    if kind == "TensorList":
        pairs = zip(dims, strides, strict=True)
        return tuple(_operand(LISTED, *each) for each in pairs)
    if kind in DTYPES:
        return _operand(DTYPES[kind], dims, strides)
    try:
        read = json.loads(value.lower()) if value else None
    except ValueError:
        return value
    return tuple(read) if isinstance(read, list) else read


def _operand(dtype: str, dims: list[int], strides: list[int]) -> Operand:
    """A tensor of the GPU; one of 64 bits without dimensions is a number of the host."""
    shape, steps = tuple(dims), tuple(strides)
    device = "cpu" if not shape and dtype in ("fp64", "int64") else "cuda"
    return Operand(dtype, shape, () if steps == contiguous(shape) else steps, device)


def _first(arguments: tuple[Argument, ...]) -> Operand:
    return next(each for each in arguments if isinstance(each, Operand))


def _broadcast(arguments: tuple[Argument, ...]) -> Operand:
    """What an elementwise operation returns: the common shape of its tensors, in the first one's type."""
    tensors = [each for each in arguments if isinstance(each, Operand)]
    rank = max(len(each.shape) for each in tensors)
    padded = [(1,) * (rank - len(each.shape)) + each.shape for each in tensors]
    shape = tuple(map(max, zip(*padded, strict=True)))
    first = tensors[0]
    return (
        first if shape == first.shape and dense(first) else Operand(first.dtype, shape)
    )


def _relu(name: str) -> Callable[[tuple[Argument, ...]], Operation]:
    def made(arguments: tuple[Argument, ...]) -> Operation:
        image = _first(arguments)
        return Operation(f"aten.{name}.default", (image,), (), (image,))

    return made


def _attention(arguments: tuple[Argument, ...]) -> Operation:
    """_cudnn_attention_forward(queries, keys, values, ...)."""
    q, k, v = (each for each in arguments[:3] if isinstance(each, Operand))
    return attention.Fused("cudnn", q, k, v, keeps=True).forward(q)


def _attention_backward(arguments: tuple[Argument, ...]) -> Operation:
    """_cudnn_attention_backward(gradient, queries, keys, values, output, ...)."""
    g, q, k, v, y = (each for each in arguments[:5] if isinstance(each, Operand))
    return attention.Fused("cudnn", q, k, v, keeps=True).backward(g, y, (q, k, v))


def _convolution(arguments: tuple[Argument, ...]) -> Operation:
    """cudnn_convolution(image, weight, padding, stride, dilation, groups, ...)."""
    image, weight, padding, stride, dilation, groups, *_ = arguments
    plain = (image, weight, None, stride, padding, dilation, False, (0, 0), groups)
    result = _convolved(image, weight, padding, stride, dilation)
    return Operation("aten.convolution.default", plain, (), (result,))


def _convolved(
    image: Any, weight: Any, padding: Any, stride: Any, dilation: Any
) -> Operand:
    """The result of a convolution, in the image's memory format."""
    spread = zip(
        image.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True
    )
    sides = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in spread)
    batch, filters = image.shape[0], weight.shape[0]
    high, wide = sides
    last = (high * wide * filters, 1, wide * filters, filters)
    strides = last if image.strides else ()
    return Operand(image.dtype, (batch, filters, *sides), strides)


def _convolution_backward(arguments: tuple[Argument, ...]) -> Operation:
    """Gradients of the image, where the mask asks for it, and of the weights."""
    mask = arguments[10]
    pairs = zip(arguments[1:3], mask if isinstance(mask, tuple) else (), strict=False)
    results = tuple(
        each for each, wanted in pairs if wanted and isinstance(each, Operand)
    )
    return Operation("aten.convolution_backward.default", arguments, (), results)


#: Operations below those that programs call: traces tie kernels to the innermost.
INNER: dict[str, Callable[[tuple[Argument, ...]], Operation]] = {
    "clamp_min": _relu("relu"),
    "clamp_min_": _relu("relu_"),
    "_cudnn_attention_forward": _attention,
    "_cudnn_attention_backward": _attention_backward,
    "cudnn_convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
