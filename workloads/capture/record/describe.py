"""An ATen call as plain values, ready for the recording's table of operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from prestep.workloads.capture.record import sparse
from prestep.workloads.capture.record.values import tensors_in, value_of

DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
    torch.complex128: "complex128",
    torch.complex64: "complex64",
    torch.complex32: "complex32",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}

#: Matrix products, which tensor cores may run in TF32 where operands are fp32.
PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv"])
#: Sums with a sparse tensor, which CUDA adds row by row in place.
SUMS = ("aten.add_.Tensor", "aten.sub_.Tensor")
#: Writes by index; where they add, rows of one index wait for each other.
PUTS = frozenset(["index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"])
CONVOLUTIONS = frozenset(
    ["convolution", "convolution_backward", "cudnn_convolution", "_convolution"]
)


def call(function: Any, arguments: Any, options: Any, results: Any) -> list[Any]:
    """[name, arguments, options, results]; a tensor is {"dtype", "shape", "strides" unless contiguous, "device"}."""
    returned = tensors_in(results)
    name = f"{function._schema.name.replace('::', '.')}.{function._overloadname}"
    other = arguments[1] if name in SUMS else None
    if isinstance(other, torch.Tensor) and other.layout == torch.sparse_coo:
        written, (rows, places) = arguments[0], sparse.parts(other)
        name, arguments = "aten.index_add_.default", (written, 0, places[0], rows)
    if name == "aten.sparse_mask.default" and not sparse.is_sparse(arguments[0]):
        _, places = sparse.parts(arguments[1])
        name, arguments = "aten.index_select.default", (arguments[0], 0, places[0])
    if _in_tf32(name.split(".")[1], returned):
        options = {**options, "allow_tf32": True}
    if name.split(".")[1] in PUTS and (largest := _largest_group(arguments)):
        options = {**options, "largest_group": largest}
    if "attention_backward" in name and torch.are_deterministic_algorithms_enabled():
        options = {**options, "deterministic": True}
    if name == "aten._grouped_mm.default" and (rows := _rows_of_groups(arguments)):
        options = {**options, "rows": rows}
    return [
        name,
        [argument(a) for a in arguments],
        {
            key: argument(value)
            for key, value in sorted(options.items())
            if key != "device"
        },
        [tensor(t) for t in returned],
    ]


def _in_tf32(name: str, returned: list[torch.Tensor]) -> bool:
    """Whether the program lets an operation round its fp32 operands to TF32; products have to be asked, cuDNN not."""
    if not returned or returned[0].dtype != torch.float32:
        return False
    if name.startswith("_cudnn_rnn"):
        return str(torch.backends.cudnn.rnn.fp32_precision) == "tf32"
    if name not in PRODUCTS and name not in CONVOLUTIONS:
        return False
    return convolutions_in_tf32() if name in CONVOLUTIONS else products_in_tf32()


def _largest_group(arguments: Any) -> int:
    """Most rows that one index adds up, as routers choose it; 0 where nobody knows the indices."""
    indices = [each for each in arguments[1] if each is not None]
    known = value_of(indices[0]) if len(indices) == 1 else None
    if known is None or known.is_floating_point() or known.dtype == torch.bool:
        return 0
    with _disable_current_modes():
        flat = known.flatten().long()
        return int((flat - flat.min()).bincount().max()) if flat.numel() else 0


def _rows_of_groups(arguments: Any) -> int:
    """Where the last group of a grouped product ends, if rows that are nobody's follow it; else 0."""
    left, right, ends = arguments[:3]
    known = None if ends is None or left.dim() > 2 else value_of(ends)
    if known is None:
        return 0
    with _disable_current_modes():
        last = int(known.max())
    return last if last < left.shape[1 if right.dim() == 2 else 0] else 0


def products_in_tf32() -> bool:
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def convolutions_in_tf32() -> bool:
    return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"


def argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if sparse.is_sparse(value):
            return [tensor(part) for part in sparse.parts(value)]
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return [argument(v) for v in value]
    if isinstance(value, torch.dtype):
        return DTYPES.get(value, str(value).removeprefix("torch."))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    return str(value)


def tensor(value: torch.Tensor) -> dict[str, Any]:
    if sparse.is_sparse(value):
        value = sparse.parts(value)[0]
    described: dict[str, Any] = {
        "dtype": DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch.")),
        "shape": [int(size) for size in value.shape],
    }
    if not value.is_contiguous():
        described["strides"] = [int(s) for s in value.stride()]
    if value.device.type == "cpu":
        described["device"] = "cpu"
    return described
