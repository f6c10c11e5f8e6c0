"""An operator of a trace is the kernel that the same operation of a captured program is."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.costs.estimators.attention import plain
from prestep.sim.graph.kernel import Kernel, plain_product
from prestep.validation.formats.kineto_operations import classify
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.rules import kernels_of

ROWS = Operand("bf16", (64, 512))
WEIGHT = Operand("bf16", (512, 256), (1, 512))
HEADS = Operand("bf16", (2, 8, 128, 64))
IMAGE = Operand("bf16", (4, 16, 32, 32), (16384, 1, 512, 16))
FILTERS = Operand("bf16", (32, 16, 3, 3), (144, 1, 48, 16))
# A 3 x 3 filter with padding 1 and stride 2 leaves half of each side.
CONVOLVED = Operand("bf16", (4, 32, 16, 16), (8192, 1, 512, 32))
TYPES = {"bf16": "c10::BFloat16", "fp32": "float", "int64": "long int"}
NORMALIZED: tuple[Argument, ...] = (ROWS, (512,), Operand("bf16", (512,)), None)
ATTENTION = "aten._scaled_dot_product_cudnn_attention.default"


def event(name: str, *arguments: Argument) -> dict[str, Any]:
    """An operator as Kineto records it: sizes, strides and types of tensors, and the text of everything else."""
    columns: dict[str, list[Any]] = {"dims": [], "strides": [], "type": [], "text": []}
    for each in arguments:
        dims, strides, kind, text = _columns(each)
        for key, value in zip(columns, (dims, strides, kind, text), strict=True):
            columns[key].append(value)
    names = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
    return {
        "name": f"aten::{name}",
        "args": dict(zip(names, columns.values(), strict=True)),
    }


def _columns(each: Argument) -> tuple[Any, Any, str, str]:
    if isinstance(each, Operand):
        return list(each.shape), list(_strides(each)), TYPES[each.dtype], ""
    if isinstance(each, tuple) and isinstance(each[0], Operand):
        parts = [part for part in each if isinstance(part, Operand)]
        shapes = [list(part.shape) for part in parts]
        return shapes, [list(_strides(part)) for part in parts], "TensorList", ""
    if isinstance(each, tuple):
        return [], [], "ScalarList", str(list(each))
    return [], [], "" if each is None else "Scalar", "" if each is None else str(each)


def _strides(operand: Operand) -> tuple[int, ...]:
    """Strides also of contiguous tensors, which Kineto always writes."""
    if operand.strides:
        return operand.strides
    steps = [1]
    for size in operand.shape[:0:-1]:
        steps.append(steps[-1] * size)
    return tuple(reversed(steps))[: len(operand.shape)]


def of_program(name: str, arguments: tuple[Argument, ...], *results: Operand) -> Kernel:
    """The kernel of an operation that a program recorded with its results."""
    (kernel,) = kernels_of(Operation(name, arguments, (), results))
    return plain(kernel) if kernel.is_attention else plain_product(kernel)


PAIRS = [
    (
        event("mm", ROWS, WEIGHT),
        of_program("aten.mm.default", (ROWS, WEIGHT), Operand("bf16", (64, 256))),
    ),
    (
        event("add", ROWS, ROWS, 1),
        of_program("aten.add.Tensor", (ROWS, ROWS, 1), ROWS),
    ),
    (
        event("mul", ROWS, Operand("bf16", (512,))),
        of_program("aten.mul.Tensor", (ROWS, Operand("bf16", (512,))), ROWS),
    ),
    (event("clamp_min_", ROWS, 0), of_program("aten.relu_.default", (ROWS,), ROWS)),
    (
        event("_fused_rms_norm", *NORMALIZED),
        of_program("aten._fused_rms_norm.default", NORMALIZED, ROWS),
    ),
    (
        event("_log_softmax", ROWS, 1, False),
        of_program("aten._log_softmax.default", (ROWS, 1, False), ROWS),
    ),
    (
        event("cat", (ROWS, ROWS), -1),
        of_program("aten.cat.default", ((ROWS, ROWS), -1), Operand("bf16", (64, 1024))),
    ),
    (
        event("cudnn_convolution", IMAGE, FILTERS, (1, 1), (2, 2), (1, 1), 1, False),
        of_program(
            "aten.convolution.default",
            (IMAGE, FILTERS, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1),
            CONVOLVED,
        ),
    ),
    (
        event("_cudnn_attention_forward", HEADS, HEADS, HEADS, None),
        of_program(ATTENTION, (HEADS, HEADS, HEADS, None, True, 0.0, True), HEADS),
    ),
]


@pytest.mark.parametrize(
    ("recorded", "kernel"), PAIRS, ids=[recorded["name"] for recorded, _ in PAIRS]
)
def test_a_trace_and_a_program_know_one_kernel(
    recorded: dict[str, Any], kernel: Kernel
) -> None:
    """Kind, shape, type, layout and bytes agree, though a trace does not say what an operation returned."""
    assert classify(recorded) == kernel


def test_the_host_has_numbers_without_dimensions() -> None:
    """A product with a number on the host reads one tensor and writes one."""
    number = event("mul", ROWS, Operand("bf16", (512,)))
    number["args"]["Input Dims"][1], number["args"]["Input Strides"][1] = [], []
    number["args"]["Input type"][1] = "double"
    kernel = classify(number)
    assert kernel is not None and kernel.bytes == 2 * 64 * 512 * 2


def test_what_a_trace_does_not_say_is_left_out() -> None:
    """Lists without sizes, operators without shapes and those whose results are not known give no kernel."""
    without = {
        "name": "aten::_fused_adamw_",
        "args": event("_fused_adamw_", None)["args"],
    }
    assert classify(without) is None
    assert classify({"name": "aten::mm", "args": {}}) is None
    assert classify(event("embedding_dense_backward", ROWS, ROWS)) is None
