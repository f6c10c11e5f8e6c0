"""Kernel calls in a Kineto trace: which aten operation, at which shape, for how long on the GPU.

One `Call` is one aten operation as the GPU saw it: from the start of its first kernel to the end of its last,
with the gaps inside clipped (a gap longer than the pipeline's own is the host's, and the host is modelled apart).
"""

from __future__ import annotations

import gzip
import json
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sim.costs.kernel import Kernel

INNER_GAP = 1.6e-6  # s, between kernels of one operation; measured: mean of back-to-back gaps in 1b-single-b2
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
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
Event = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One aten operation on one stream; `duration` in s; `overlapped` if an NCCL kernel ran meanwhile."""

    kernel: Kernel
    duration: float
    overlapped: bool
    parts: int
    start: float


def read_events(path: Path) -> list[Event]:
    """The `traceEvents` of a (gzipped) Kineto trace."""
    raw = path.read_bytes()
    return list(json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"])


def read_calls(path: Path) -> Iterator[Call]:
    """Calls of the profiled steps; kernels launched before profiling began have no operation and are left out."""
    events = read_events(path)
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op" and "External id" in e["args"]}
    running = sorted((e for e in events if e.get("cat") in GPU_EVENTS), key=lambda e: e["ts"])
    nccl = [(e["ts"], e["ts"] + e["dur"]) for e in running if "nccl" in e["name"]]
    grouped: dict[tuple[int, int], list[Event]] = {}
    for event in running:
        owner = event["args"].get("External id")
        if owner in ops and "nccl" not in event["name"]:
            grouped.setdefault((owner, event["args"]["stream"]), []).append(event)
    backward = _backward_threads(events)
    for (owner, _), parts in grouped.items():
        op = ops[owner]
        for kernel, mine in _split(op, parts, op["tid"] in backward):
            start, end = mine[0]["ts"], mine[-1]["ts"] + mine[-1]["dur"]
            yield Call(kernel, _length(mine), _touches(nccl, start, end), len(mine), start * 1e-6)


def _split(op: Event, parts: list[Event], backward: bool) -> list[tuple[Kernel, list[Event]]]:
    """The kernels of one operation; a convolution's backward is two, data gradient first (the image needs none)."""
    if op["name"] != "aten::convolution_backward":
        kernel = classify(op, [p["name"] for p in parts], backward)
        return [] if kernel is None else [(kernel, parts)]
    _, (n, c, h, w), (k, _, r, s) = op["args"]["Input Dims"][:3]
    shape = (n, c, h, w, k, r, s, json.loads(op["args"]["Concrete Inputs"][4])[0])
    cut = 0 if c < 8 else 1 + next(i for i, p in enumerate(parts) if "Memset" not in p["name"])
    halves = (Kernel("conv_dgrad", shape), parts[:cut]), (Kernel("conv_wgrad", shape), parts[cut:])
    return [(kernel, half) for kernel, half in halves if half]


def read_adamw_launches(path: Path) -> list[tuple[int, float]]:
    """(chunks, s) of every launch of the fused AdamW."""
    events = read_events(path)
    ops = {e["args"].get("External id"): e["name"] for e in events if e.get("cat") == "cpu_op"}
    found = (
        e for e in events if e.get("cat") == "kernel" and ops.get(e["args"].get("External id")) == "aten::_fused_adamw_"
    )
    return [(e["args"]["grid"][0], e["dur"] * 1e-6) for e in found]


def _backward_threads(events: list[Event]) -> set[int]:
    return {
        e["tid"]
        for e in events
        if e.get("cat") == "cpu_op" and e["name"].startswith("autograd::engine::evaluate_function")
    }


def _length(parts: list[Event]) -> float:
    busy = sum(p["dur"] for p in parts) * 1e-6
    gaps = (b["ts"] - a["ts"] - a["dur"] for a, b in pairwise(parts))
    return busy + sum(min(max(gap * 1e-6, 0.0), INNER_GAP) for gap in gaps)


def _touches(intervals: list[tuple[float, float]], start: float, end: float) -> bool:
    # NCCL kernels of one rank hardly overlap each other, so looking a few intervals back is enough.
    at = bisect_left(intervals, (end, 0.0))
    return any(b > start for _, b in intervals[max(0, at - 8) : at])


def _contiguous(strides: list[int]) -> bool:
    return strides[1] == 1


def _gemm(op: Event, first: int, kind: str) -> Kernel | None:
    (m, k), (_, n) = op["args"]["Input Dims"][first : first + 2]
    a, b = op["args"]["Input Strides"][first : first + 2]
    layout = ("n" if _contiguous(a) else "t") + ("n" if _contiguous(b) else "t")
    dtype = DTYPES.get(op["args"]["Input type"][first], "bf16")
    return Kernel(kind, (m, n, k), dtype, layout)


def _elements(dims: Any) -> int:
    return math.prod(dims) if not dims or isinstance(dims[0], int) else sum(_elements(d) for d in dims)


def _attention(op: Event, kind: str) -> Kernel:
    first = 1 if kind == "attention_bwd" else 0
    (batch, heads, seq, dim), (_, kv_heads, _, _) = op["args"]["Input Dims"][first : first + 2]
    return Kernel(kind, (batch, heads, kv_heads, seq, dim))


def _conv(op: Event, kind: str) -> Kernel | None:
    (n, c, h, w), (k, _, r, s) = op["args"]["Input Dims"][:2]
    stride = json.loads(op["args"]["Concrete Inputs"][3])[0]
    return Kernel(kind, (n, c, h, w, k, r, s, stride))


def _rows(op: Event, kind: str) -> Kernel:
    dims = op["args"]["Input Dims"][0]
    return Kernel(kind, (math.prod(dims[:-1]), dims[-1]))


def _flat(kind: str, elements: int, per_element: float, layout: str = "") -> Kernel | None:
    return Kernel(kind, (elements,), "bf16", layout, bytes=elements * per_element) if elements else None


def _elementwise(op: Event, names: list[str], backward: bool) -> Kernel | None:
    name = op["name"].removeprefix("aten::").rstrip("_")
    dims, types, kernel = op["args"]["Input Dims"], op["args"]["Input type"], names[-1]
    count, size = _elements(dims[0]), SIZES.get(types[0], 2)
    plain = "vectorized_elementwise" in kernel
    if name in ("add", "sub"):
        return _flat("add", count, 3 * size) if plain and len(dims) > 1 and dims[0] == dims[1] else None
    if name == "mul":
        if "AUnaryFunctor" in kernel:
            return _flat("div", count, 2 * size)
        if plain:
            return _flat("mul", count, 3 * size)
        row = dims[1][-1:] == [1]
        return _flat("mul", count, 3 * size, "row" if row else "strided_bwd" if backward else "strided")
    if name == "div":
        return _flat("div", count, 2 * size, "" if plain else "strided")
    if name in ("silu", "gelu", "neg", "clamp_min"):
        return _flat({"clamp_min": "relu"}.get(name, name), count, 2 * size, "" if plain else "strided")
    if name in ("silu_backward", "gelu_backward", "threshold_backward"):
        return _flat(name, count, 3 * size, "" if plain else "strided")
    if name == "fill":
        return _flat("fill", count, size)
    if name == "copy":
        if "HtoD" in kernel:
            return _flat("copy_h2d", count, size)
        return _flat("copy", count, 2 * size, "" if "Memcpy" in kernel or plain else "strided")
    if name == "cat":
        layout = "strided" if "CatArrayBatchedCopy<" in kernel else ""
        return _flat("cat", count, 2 * SIZES.get("c10::BFloat16", 2), layout)
    return None


def _fsdp(op: Event, kind: str) -> Kernel | None:
    dims = op["args"]["Input Dims"]
    sizes = {"chunk_cat": dims[0], "split_with_sizes_copy": dims[0], "foreach_copy": dims[1]}
    count = _elements(sizes[kind])
    # The all-gather buffer is bytes in new PyTorch; its type says so.
    size = SIZES.get(op["args"]["Input type"][0], 2)
    return Kernel(kind, (count,), "bf16", "", bytes=2.0 * count * size)


def _fused(op: Event) -> Kernel:
    """A TorchInductor kernel: its tensors, each once (one updated in place is counted once too)."""
    tensors = zip(op["args"]["Input Dims"], op["args"]["Input type"], strict=True)
    size = sum(_elements(dims) * SIZES[kind] for dims, kind in tensors if dims)
    layout = "" if op["name"].startswith("triton_poi") else "row"
    return Kernel("fused", (size // 2,), "bf16", layout, bytes=float(size))


def _loss(op: Event, kind: str) -> Kernel:
    dims = op["args"]["Input Dims"]
    tokens, vocab = dims[1] if kind == "nll_loss_bwd" else dims[0]
    return Kernel(kind, (tokens, vocab))


def _embedding(op: Event, kind: str) -> Kernel | None:
    dims, args = op["args"]["Input Dims"], op["args"]
    if kind == "embedding_bwd":
        return Kernel(kind, (_elements(dims[1]), dims[0][-1], int(args["Concrete Inputs"][2])))
    if len(dims) < 3 or dims[2] == [] or dims[2][-1] < 64:
        return _flat("gather", _elements(dims[2]), 4) if len(dims) > 2 and dims[2] else None
    return Kernel(kind, (dims[2][0], dims[2][1], dims[0][0]))


def _image(op: Event, kind: str) -> Kernel:
    dims = op["args"]["Input Dims"][1 if kind == "maxpool_bwd" else 0]
    return (
        Kernel(kind, (math.prod(dims), dims[1])) if kind.startswith("batchnorm") else Kernel(kind, (math.prod(dims),))
    )


TABLE = {
    "aten::mm": lambda op: _gemm(op, 0, "gemm"),
    "aten::addmm": lambda op: _gemm(op, 1, "gemm_bias"),
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
    "aten::mean": lambda op: _image(op, "avgpool"),
    "aten::sort": lambda op: Kernel("argsort", (_elements(op["args"]["Input Dims"][0]),)),
    "aten::index_add": lambda op: _flat("index_add", _elements(op["args"]["Input Dims"][3]), 6),
    "aten::sum": lambda op: _flat("sum", _elements(op["args"]["Input Dims"][0]), 2),
}


def classify(op: Event, names: list[str], backward: bool) -> Kernel | None:
    """The `Kernel` that prestep would emit for an aten operation of a trace, or None if prestep has no such kind."""
    try:
        if op["name"].startswith("triton_"):
            return _fused(op)
        if op["name"] in TABLE:
            return TABLE[op["name"]](op)
        return _elementwise(op, names, backward)
    except (IndexError, KeyError, ValueError, TypeError):
        return None
