"""Which kernel of prestep an aten operation of a Kineto trace is: kind, shape, layout, bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from prestep.sim.graph.kernel import Kernel
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


def _conv(op: Event, kind: str) -> Kernel | None:
    (n, c, h, w), (k, _, r, s) = op["args"]["Input Dims"][:2]
    stride = json.loads(op["args"]["Concrete Inputs"][3])[0]
    return Kernel(kind, (n, c, h, w, k, r, s, stride))


def _rows(op: Event, kind: str) -> Kernel:
    dims = op["args"]["Input Dims"][0]
    return Kernel(kind, (math.prod(dims[:-1]), dims[-1]))


def _flat(
    kind: str, elements: int, per_element: float, layout: str = ""
) -> Kernel | None:
    return (
        Kernel(kind, (elements,), "bf16", layout, bytes=elements * per_element)
        if elements
        else None
    )


def _elementwise(op: Event, names: list[str]) -> Kernel | None:
    """An operation of each element alone; its last kernel tells how it reads its tensors."""
    name = op["name"].removeprefix("aten::").rstrip("_")
    dims, types, kernel = op["args"]["Input Dims"], op["args"]["Input type"], names[-1]
    elements, size = _elements(dims[0]), SIZES.get(types[0], 2)
    if types[0] == "long int" and name == "add":  # batches that a norm has seen
        return Kernel(name, (elements,), "int64", bytes=16.0 * elements)
    if name in ("add", "sub"):
        same = _is_vectorized(kernel) and len(dims) > 1 and dims[0] == dims[1]
        return _flat("add", elements, 3 * size) if same else None
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
        layout = "strided" if "CatArrayBatchedCopy<" in kernel else ""
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
        return _flat("copy_h2d", count, size)
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


def _loss(op: Event, kind: str) -> Kernel:
    dims = op["args"]["Input Dims"]
    tokens, vocab = dims[1] if kind == "nll_loss_bwd" else dims[0]
    return Kernel(kind, (tokens, vocab))


def _embedding(op: Event, kind: str) -> Kernel | None:
    """Rows of a table; a gather of few columns is none of an embedding."""
    dims, args = op["args"]["Input Dims"], op["args"]
    if kind == "embedding_bwd":
        vocabulary = int(args["Concrete Inputs"][2])
        return Kernel(kind, (_elements(dims[1]), dims[0][-1], vocabulary))
    if len(dims) < 3 or dims[2] == []:
        return None
    if dims[2][-1] < 64:
        return _flat("gather", _elements(dims[2]), 4)
    return Kernel(kind, (dims[2][0], dims[2][1], dims[0][0]))


def _image(op: Event, kind: str) -> Kernel:
    """A normalization or pooling of images."""
    dims = op["args"]["Input Dims"][1 if kind == "maxpool_bwd" else 0]
    elements = math.prod(dims)
    by_channel = kind.startswith("batchnorm")
    return Kernel(kind, (elements, dims[1]) if by_channel else (elements,))


def _reduce(op: Event, kind: str) -> Kernel | None:
    """A sum or mean, of rows where it is over the last axis alone."""
    dims, args = op["args"]["Input Dims"][0], op["args"]
    if len(dims) == 4:
        return _image(op, "avgpool")
    dtype = args["Input type"][0]
    axes = args["Concrete Inputs"][1] or "[]"
    last = [len(dims) - 1], [-1]
    by_row = len(dims) > 1 and json.loads(axes) in last and dims[-1] > 1
    elements = math.prod(dims)
    moved = float(elements * SIZES[dtype])
    layout = "row" if by_row else ""
    return Kernel(kind, (elements,), DTYPES.get(dtype, "bf16"), layout, bytes=moved)


TABLE: dict[str, Callable[[Event], Kernel | None]] = {
    "aten::mm": lambda op: _gemm(op, 0),
    "aten::addmm": lambda op: _gemm(op, 1),
    "aten::_cudnn_attention_forward": lambda op: _attention(op, "attention_fwd"),
    "aten::_cudnn_attention_backward": lambda op: _attention(op, "attention_bwd"),
    "aten::_fused_rms_norm": lambda op: _rows(op, "rms_norm_fwd"),
    "aten::_fused_rms_norm_backward": lambda op: _rows(op, "rms_norm_bwd"),
    "aten::_softmax": lambda op: _rows(op, "softmax"),
    "aten::_softmax_backward_data": lambda op: _rows(op, "softmax"),
    "aten::_log_softmax": lambda op: _loss(op, "log_softmax_fwd"),
    "aten::_log_softmax_backward_data": lambda op: _loss(op, "log_softmax_bwd"),
    "aten::nll_loss_forward": lambda op: _loss(op, "nll_loss_fwd"),
    "aten::nll_loss_backward": lambda op: _loss(op, "nll_loss_bwd"),
    "aten::gather": lambda op: _embedding(op, "embedding_fwd"),
    "aten::embedding_dense_backward": lambda op: _embedding(op, "embedding_bwd"),
    "aten::_chunk_cat": lambda op: _fsdp(op, "chunk_cat"),
    "aten::split_with_sizes_copy": lambda op: _fsdp(op, "split_with_sizes_copy"),
    "aten::_foreach_copy_": lambda op: _fsdp(op, "foreach_copy"),
    "aten::cudnn_convolution": lambda op: _conv(op, "conv_fwd"),
    "aten::native_batch_norm": lambda op: _image(op, "batchnorm_fwd"),
    "aten::native_batch_norm_backward": lambda op: _image(op, "batchnorm_bwd"),
    "aten::max_pool2d_with_indices": lambda op: _image(op, "maxpool_fwd"),
    "aten::max_pool2d_with_indices_backward": lambda op: _image(op, "maxpool_bwd"),
    "aten::mean": lambda op: _reduce(op, "sum"),
    "aten::mse_loss": lambda op: _flat(
        "mse_loss", _elements(op["args"]["Input Dims"][0]), 6
    ),
    "aten::mse_loss_backward": lambda op: _flat(
        "mse_backward", _elements(op["args"]["Input Dims"][1]), 8
    ),
    "aten::scatter_add_": lambda op: _flat(
        "scatter_add", _elements(op["args"]["Input Dims"][3]), 12
    ),
    "aten::native_layer_norm": lambda op: _rows(op, "layer_norm_fwd"),
    "aten::native_layer_norm_backward": lambda op: _rows(op, "layer_norm_bwd"),
    "aten::index_add": lambda op: _flat(
        "index_add", _elements(op["args"]["Input Dims"][3]), 6
    ),
    "aten::sum": lambda op: _reduce(op, "sum"),
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
