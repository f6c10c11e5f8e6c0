"""Which kernel of prestep an aten operation of a Kineto trace is: kind, shape, layout, bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from prestep.sim.costs.kinds import ROW_PASSES
from prestep.sim.graph.kernel import PREFIX, Kernel
from prestep.validation.formats.kineto_fused import fused_kernel

SIZES = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "float": 4,
    "double": 8,
    "long int": 8,
    "long": 8,
    "int": 4,
    "bool": 1,
    "unsigned char": 1,
}
DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
Event = dict[str, Any]


def _contiguous(strides: list[int]) -> bool:
    return strides[1] == 1


def _gemm(op: Event, first: int) -> Kernel | None:
    (m, k), (_, n) = op["args"]["Input Dims"][first : first + 2]
    a, b = op["args"]["Input Strides"][first : first + 2]
    layout = ("n" if _contiguous(a) else "t") + ("n" if _contiguous(b) else "t")
    dtype = DTYPES.get(op["args"]["Input type"][first], "bf16")
    return Kernel("gemm", (m, n, k), dtype, layout)


def _elements(dims: Any) -> int:
    """Elements of a tensor, or of a list of them."""
    if not dims or isinstance(dims[0], int):
        return math.prod(dims)
    return sum(_elements(part) for part in dims)


def _attention(op: Event, kind: str) -> Kernel:
    first = 1 if kind == "attention_bwd" else 0
    (batch, heads, seq, dim), (_, kv_heads, _, _) = op["args"]["Input Dims"][
        first : first + 2
    ]
    return Kernel(kind, (batch, heads, kv_heads, seq, dim))


def _convolution(op: Event, passes: int) -> Kernel | None:
    """Pictures whose channels lie last; backward one pass for the image, which needs none, and one for the filter."""
    at = passes - 1  # the gradient comes first
    dims, numbers = op["args"]["Input Dims"], op["args"]["Concrete Inputs"]
    (n, c, h, w), (k, _, r, s) = dims[at : at + 2]
    stride = json.loads(numbers[3 + at])[0]
    if passes == 2 and c < IMAGE:
        passes = 1
    pixels = n * -(-h // stride) * -(-w // stride)
    flops = 2.0 * passes * pixels * k * c * r * s
    moved = 2.0 * passes * (n * c * h * w + pixels * k + k * c * r * s)
    shape, layout = (n, c, h, w, k, r, s, stride, 1), "channels_last"
    name = op["name"].removeprefix("aten::").removeprefix("cudnn_")
    return Kernel(PREFIX + name, shape, "bf16", layout, moved, flops)


def _rows(op: Event) -> Kernel:
    dims = op["args"]["Input Dims"][0]
    shape = math.prod(dims[:-1]), dims[-1]
    name = op["name"].removeprefix("aten::")
    return Kernel(PREFIX + name, shape)


def _flat(
    name: str, elements: int, per_element: float, layout: str = ""
) -> Kernel | None:
    moved = elements * per_element
    kernel = Kernel(PREFIX + name, (elements,), "bf16", layout, bytes=moved)
    return kernel if elements else None


def _elementwise(op: Event, names: list[str]) -> Kernel | None:
    """An operation of each element alone; its last kernel tells how it reads its tensors."""
    name = op["name"].removeprefix("aten::").rstrip("_")
    dims, types, kernel = op["args"]["Input Dims"], op["args"]["Input type"], names[-1]
    elements, size = _elements(dims[0]), SIZES.get(types[0], 2)
    if types[0] == "long int" and name == "add":  # batches that a norm has seen
        return Kernel(f"{PREFIX}add", (elements,), "int64", bytes=16.0 * elements)
    if name in ("add", "sub"):
        same = _is_vectorized(kernel) and len(dims) > 1 and dims[0] == dims[1]
        return _flat(name, elements, 3 * size) if same else None
    if name == "mul":
        return _product(dims, kernel, size)
    return _moved(name, kernel, elements, size) or _of_one(name, kernel, elements, size)


def _is_vectorized(kernel: str) -> bool:
    """Whether a kernel reads its tensors as flat arrays, not by strides."""
    return "vectorized_elementwise" in kernel


def _moved(name: str, kernel: str, elements: int, size: int) -> Kernel | None:
    """A copy, a fill or a concatenation."""
    if name == "copy":
        return _copy(kernel, elements, size)
    if name == "fill":
        return _flat("fill", elements, size)
    if name == "cat":
        layout = "strided" if "CatArrayBatchedCopy<" in kernel else "inner"
        return _flat("cat", elements, 2 * SIZES["c10::BFloat16"], layout)
    return None


def _of_one(name: str, kernel: str, elements: int, size: int) -> Kernel | None:
    """A function of one tensor, or its derivative, which also reads the gradient."""
    layout = "" if _is_vectorized(kernel) else "strided"
    if name in ONE_INPUT:
        return _flat(ONE_INPUT[name], elements, 2 * size, layout)
    if name in DERIVATIVES:
        return _flat(name, elements, 3 * size, layout)
    return None


def _product(dims: Any, kernel: str, size: int) -> Kernel | None:
    """A product of tensors; one with a number is a division by it."""
    count = _elements(dims[0])
    if "AUnaryFunctor" in kernel:
        return _flat("div", count, 2 * size)
    if _is_vectorized(kernel):
        return _flat("mul", count, 3 * size)
    if dims[1][-1:] == [1]:
        return _flat("mul", count, 3 * size, "row")
    return _flat("mul", count, 3 * size, "strided")


def _copy(kernel: str, count: int, size: int) -> Kernel | None:
    if "HtoD" in kernel:
        return Kernel("copy_h2d", (count,), bytes=float(count * size))
    plain = "Memcpy" in kernel or _is_vectorized(kernel)
    return _flat("copy", count, 2 * size, "" if plain else "strided")


def _fsdp(op: Event, kind: str) -> Kernel | None:
    dims = op["args"]["Input Dims"]
    sizes = {
        "chunk_cat": dims[0],
        "split_with_sizes_copy": dims[0],
        "foreach_copy": dims[1],
    }
    count = _elements(sizes[kind])
    # The all-gather buffer is bytes in new PyTorch; its type says so.
    size = SIZES.get(op["args"]["Input type"][0], 2)
    return Kernel(kind, (count,), "bf16", "", bytes=2.0 * count * size)


# Operators of one tensor, and the kinds of kernel they are.
ONE_INPUT = {
    "div": "div",
    "silu": "silu",
    "gelu": "gelu",
    "neg": "neg",
    "clamp_min": "relu",
}
# Their derivatives, by name.
DERIVATIVES = ("silu_backward", "gelu_backward", "threshold_backward")


def _looked_up(op: Event) -> Kernel | None:
    """Rows of a table, which a lookup gathers, or a number of each row."""
    dims = op["args"]["Input Dims"]
    if len(dims) < 3 or dims[2] == []:
        return None
    count, width = (*dims[2], 1)[:2]
    if width >= ROW:
        shape = count, width, dims[0][0]
        return Kernel(f"{PREFIX}embedding", shape, bytes=4.0 * count * width)
    return Kernel(f"{PREFIX}gather", (count * width, 1), bytes=12.0 * count * width)


def _picked(op: Event) -> Kernel:
    """The score of each row's class, by one block of threads."""
    tokens, classes = op["args"]["Input Dims"][0]
    return Kernel(f"{PREFIX}nll_loss_forward", (tokens, classes), bytes=40.0 * tokens)


def _channels(op: Event, passes: int) -> Kernel:
    """A normalization of pictures whose channels lie last."""
    dims = op["args"]["Input Dims"][0]
    name, shape = op["name"].removeprefix("aten::"), (math.prod(dims), dims[1])
    moved = 2.0 * passes * shape[0]
    return Kernel(PREFIX + name, shape, layout="channels_last", bytes=moved)


def _sum(op: Event) -> Kernel | None:
    """A sum of all elements, or of each row."""
    dims, args = op["args"]["Input Dims"][0], op["args"]
    dtype, elements = args["Input type"][0], math.prod(dims)
    axes = args["Concrete Inputs"][1] or "[]"
    last = [len(dims) - 1], [-1]
    by_row = len(dims) > 1 and json.loads(axes) in last and dims[-1] > 1
    layout, moved = "row" if by_row else "", float(elements * SIZES[dtype])
    return Kernel("sum", (elements,), DTYPES.get(dtype, "bf16"), layout, bytes=moved)


def _errors(op: Event, at: int, each: int) -> Kernel | None:
    """Squared errors: so many bytes an element."""
    name = op["name"].removeprefix("aten::")
    return _flat(name, _elements(op["args"]["Input Dims"][at]), each)


#: Channels of a picture that is the input, and elements of the narrowest row of a table of words.
IMAGE, ROW = 8, 64
TABLE: dict[str, Callable[[Event], Kernel | None]] = {
    "aten::mm": lambda op: _gemm(op, 0),
    "aten::addmm": lambda op: _gemm(op, 1),
    "aten::_cudnn_attention_forward": lambda op: _attention(op, "attention_fwd"),
    "aten::_cudnn_attention_backward": lambda op: _attention(op, "attention_bwd"),
    **dict.fromkeys((kind.replace(PREFIX, "aten::") for kind in ROW_PASSES), _rows),
    "aten::nll_loss_forward": _picked,
    "aten::gather": _looked_up,
    "aten::_chunk_cat": lambda op: _fsdp(op, "chunk_cat"),
    "aten::split_with_sizes_copy": lambda op: _fsdp(op, "split_with_sizes_copy"),
    "aten::_foreach_copy_": lambda op: _fsdp(op, "foreach_copy"),
    "aten::cudnn_convolution": lambda op: _convolution(op, 1),
    "aten::convolution_backward": lambda op: _convolution(op, 2),
    "aten::native_batch_norm": lambda op: _channels(op, 2),
    "aten::native_batch_norm_backward": lambda op: _channels(op, 3),
    "aten::mse_loss": lambda op: _errors(op, 0, 6),
    "aten::mse_loss_backward": lambda op: _errors(op, 1, 8),
    "aten::sum": _sum,
}


def classify(op: Event, parts: list[Event]) -> Kernel | None:
    """The `Kernel` that prestep would emit for an aten operation of a trace, or None if prestep has no such kind."""
    try:
        if op["name"].startswith("triton_"):
            return fused_kernel(op)
        if op["name"] in TABLE:
            return TABLE[op["name"]](op)
        return _elementwise(op, [part["name"] for part in parts])
    except (IndexError, KeyError, ValueError, TypeError):
        return None
