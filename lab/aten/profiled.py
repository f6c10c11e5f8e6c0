"""Operations of a profiler trace with shapes, each with the seconds of the GPU kernels that it launched."""

from __future__ import annotations

import ast
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.aten.results import results_of
from prestep.workloads.operation import Argument, Operand, Operation, words

#: The profiler's names of element types.
DTYPES = {
    "double": "fp64",
    "float": "fp32",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8_e4m3",
    "c10::Float8_e5m2": "fp8_e5m2",
    "c10::complex<float>": "complex64",
    "long int": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}

#: What PyTorch resolves above the dispatcher's kernels: a recording has the operations inside, not these.
COMPOSITE = frozenset(
    words(
        "__or__ _batch_norm_impl_index _convolution _has_compatible_shallow_copy_type adaptive_avg_pool2d "
        "batch_norm chunk contiguous conv1d conv2d cross_entropy_loss diff dropout embedding_backward flatten "
        "flatten_dense_tensors is_nonzero isfinite item layer_norm linear log_softmax matmul max_pool2d "
        "narrow nll_loss nll_loss_nd pad repeat_interleave reshape resolve_conj result_type rms_norm "
        "scaled_dot_product_attention softmax split to type_as unflatten unflatten_dense_tensors view_as "
        "one_hot cumsum_backward value_selecting_reduction_backward norm"
    )
)
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Profiled:
    """One operation of a trace.

    Attributes
    ----------
    operation
        With results derived from its operands: traces do not have them.
    seconds
        Durations of the kernels, copies and sets that it launched, summed.
    start
        Of its first kernel; of the call on the host where there is none, s.
    kernels
        Names of what it launched, in order.
    """

    operation: Operation
    seconds: float
    start: float
    kernels: tuple[str, ...]

    @property
    def unseen(self) -> bool:
        """Whether the trace shows none of its tensors: those of long lists."""
        return (not self.operation.operands and "_" in self.operation.name[5:7]) or (
            not self.operation.operands and self.operation.name == "aten.stack.default"
        )


def read(path: Path) -> list[Profiled]:
    """Operations of a trace in the order of their calls."""
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    calls = _recorded(e for e in events if e.get("cat") == "cpu_op")
    launched = _launched(events, calls)
    return [
        _profiled(event, launched.get(id(event), []))
        for event in {id(e): e for e in calls.values()}.values()
    ]


def _recorded(events: Iterator[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The recorded operation around each host event, by the event's external id; one entry for each id below it."""
    around: dict[int, dict[str, Any]] = {}
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        threads[event["tid"]].append(event)
    for mine in threads.values():
        _of_thread(mine, around)
    return around


def _of_thread(events: list[dict[str, Any]], around: dict[int, dict[str, Any]]) -> None:
    """An event with one of the same name inside is autocast's, which casts and calls again: not recorded."""
    ordered = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
    outer: dict[str, Any] | None = None
    for at, event in enumerate(ordered):
        inside = outer is not None and event["ts"] < outer["ts"] + outer["dur"]
        if not inside:
            kept = _is_recorded(event["name"]) and not _calls_again(ordered, at)
            outer = event if kept else None
        if outer is not None:
            around[event["args"]["External id"]] = outer


def _calls_again(ordered: list[dict[str, Any]], at: int) -> bool:
    event = ordered[at]
    end = event["ts"] + event["dur"]
    for later in ordered[at + 1 :]:
        if later["ts"] >= end:
            return False
        if later["name"] == event["name"]:
            return True
    return False


def _is_recorded(name: str) -> bool:
    namespace, _, operation = name.partition("::")
    return namespace in ("aten", "fsdp") and operation not in COMPOSITE


def _launched(
    events: list[dict[str, Any]], calls: dict[int, dict[str, Any]]
) -> dict[int, list[dict[str, Any]]]:
    """GPU events by the identity of the recorded operation that launched them."""
    by_correlation: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            call = calls.get(event["args"].get("External id", -1))
            if call is not None:
                by_correlation[event["args"]["correlation"]] = call
    launched: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in GPU_WORK:
            call = by_correlation.get(event["args"].get("correlation", -1))
            if call is not None:
                launched[id(call)].append(event)
    return launched


def _profiled(event: dict[str, Any], kernels: list[dict[str, Any]]) -> Profiled:
    names = tuple(kernel["name"] for kernel in kernels)
    operation = _operation(event, names)
    start = min((kernel["ts"] for kernel in kernels), default=event["ts"])
    seconds = sum(kernel["dur"] for kernel in kernels)
    return Profiled(operation, seconds * 1e-6, start * 1e-6, names)


def _operation(event: dict[str, Any], kernels: tuple[str, ...]) -> Operation:
    args = event["args"]
    rows = zip(
        args.get("Input type", ()),
        args.get("Input Dims", ()),
        args.get("Input Strides", ()),
        args.get("Concrete Inputs", ()),
        strict=False,
    )
    lists = _list_dtype(kernels)
    arguments = tuple(_argument(*row, lists) for row in rows)
    name = event["name"].replace("::", ".")
    operation = Operation(f"{name}.default", arguments)
    return replace(operation, results=results_of(operation))


def _list_dtype(kernels: tuple[str, ...]) -> str:
    """Element type of tensors in lists, of which a trace says the shapes alone: what the kernels' names say."""
    text = " ".join(kernels)
    two_bytes = "BFloat16" in text or "OpaqueType<2u>" in text or "bf16" in text
    return "bf16" if two_bytes and "float" not in text.split("BFloat16")[0] else "fp32"


def _argument(
    kind: str, dims: list[Any], strides: list[Any], value: str, lists: str
) -> Argument:
    if kind in DTYPES:
        return _operand(DTYPES[kind], dims, strides)
    if kind in ("TensorList", "GenericList") and dims:
        return tuple(
            _operand(lists, *each) for each in zip(dims, strides, strict=False)
        )
    return _number(value)


def _operand(dtype: str, dims: list[int], strides: list[int]) -> Operand:
    shape = tuple(dims)
    own = tuple(strides)
    return Operand(dtype, shape, () if own == contiguous(shape) else own)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _number(text: str) -> Argument:
    if not text:
        return None
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return tuple(value) if isinstance(value, list) else value
