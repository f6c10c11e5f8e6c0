"""Rows of kernels as a machine measured them: from Kineto traces of training steps, and from microbenchmarks.

Microbenchmarks (`micro.jsonl`, as triton's `do_bench` times) run one kernel in short bursts after flushing the L2: an
event pair and a cold cache make short kernels look longer, high clocks make long ones look shorter. `line` fits both.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim.costs import terms
from prestep.sim.costs.kinds import work
from prestep.sim.costs.tables import Row
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel, attention, product
from prestep.validation.formats.kineto_kernels import Call
from prestep.validation.formats.records import read_lines, text_of

NOISE = (
    0.06  # relative, of rows without an in-situ counterpart; shorter than 30 us: 15 %
)
OVERHEAD = 4.0e-6  # s, event pair and cold cache around memory-bound kernels; measured against traces
FITTED = ("gemm", "attention_fwd", "attention_bwd")
# Its transpose is of a whole matrix, four times as slow as the transposes of heads that a step makes: not used.
OPS = {
    "gelu": "aten gelu",
    "sum": "sum",
    "layer_norm": "aten native_layer_norm",
    "softmax": "aten _softmax",
}
ROWS = ("aten native_layer_norm", "aten _softmax")
DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "tf32",
    "float8_e4m3fn": "fp8",
    "fp8_block": "fp8_block",
}
TRACE_NOISE = 0.01  # relative; traces of one shape differ by 1-2 %
OVERLAPPED_NOISE = 0.05
# The loss gathers one logit per row: how long that takes depends on the targets (two traces of a shape: up to 20 %).
SCATTERED = {"aten nll_loss_forward": 0.15}


def trace_rows(calls: Mapping[str, Sequence[Call]]) -> list[Row]:
    """One row per kernel and shape: the median over all traces of the calls that no collective overlapped."""
    alone, beside = _by_kernel(calls)
    return [
        _trace_row(kernel, alone.get(kernel) or beside[kernel], kernel in alone)
        for kernel in alone | beside
    ]


Calls = dict[Kernel, list[tuple[str, Call]]]


def _by_kernel(calls: Mapping[str, Sequence[Call]]) -> tuple[Calls, Calls]:
    """Calls of each kernel with their trace: those that ran alone, and those beside a collective."""
    alone: Calls = defaultdict(list)
    beside: Calls = defaultdict(list)
    for trace, mine in calls.items():
        for call in mine:
            (beside if call.overlapped else alone)[call.kernel].append((trace, call))
    return alone, beside


def _trace_row(kernel: Kernel, calls: list[tuple[str, Call]], alone: bool) -> Row:
    """The row of a kernel's calls, each with its trace."""
    times = [call.duration for _, call in calls]
    # Overlapped calls are only slower: the fastest tenth is the nearest to running alone.
    time = statistics.median(times) if alone else sorted(times)[len(times) // 10]
    traces = " ".join(sorted({trace.split(".")[0] for trace, _ in calls}))
    source = traces if alone else f"{traces} (overlapped)"
    return Row(kernel, time, _noise(kernel, alone), len(times), source)


def _noise(kernel: Kernel, alone: bool) -> float:
    return SCATTERED.get(kernel.kind, TRACE_NOISE if alone else OVERLAPPED_NOISE)


def micro_rows(path: Path) -> list[Row]:
    """Rows of `micro.jsonl`: raw for the kinds in `FITTED`, less `OVERHEAD` for the others.

    Raises
    ------
    InputError
        With every line that is no kernel's row.
    """
    rows = list[Row]()

    def take(record: Any, where: str) -> None:
        try:
            row = _row(record)
        except (
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
        ) as e:
            found = f"no {e}" if isinstance(e, KeyError) else str(e)
            expected = "a kernel's row, as `prestep measure` writes"
            raise InputError.of(where, "", found[:100], expected) from None
        rows.extend([] if row is None else [row])

    read_lines(text_of(path), path.name, take)
    return rows


def _row(record: dict[str, object]) -> Row | None:
    kernel = _kernel(record)
    if kernel is None or not record.get("s"):
        return None
    seconds = float(record["s"])  # type: ignore[arg-type]
    time = (
        seconds
        if terms.group(kernel)[0] in FITTED
        else max(seconds - OVERHEAD, 0.3 * seconds)
    )
    return Row(kernel, time, NOISE if seconds > 3e-5 else 0.15, 1, "micro")


def _kernel(record: dict[str, object]) -> Kernel | None:
    get = record.get
    if get("kind") == "gemm":
        shape = tuple(int(record[axis]) for axis in "mnk")  # type: ignore[call-overload]
        return product(shape, DTYPES[str(get("dtype"))], str(get("layout")))
    if get("kind") == "attention":
        names = ("batch", "heads", "kv_heads", "seq", "head_dim")
        shape = tuple(int(record[name]) for name in names)  # type: ignore[call-overload]
        return attention(shape, backward=get("dir") == "bwd")
    if get("kind") == "memory" and get("op") in OPS:
        elements, op = int(record["elements"]), OPS[str(get("op"))]  # type: ignore[call-overload]
        moved = float(record["bytes_moved"])  # type: ignore[arg-type]
        if op in ROWS:
            columns = min(elements, 4096)
            return Kernel(op, (elements // columns, columns), bytes=moved)
        return Kernel(op, (elements,), bytes=moved)
    return None


def merge(traces: list[Row], micro: list[Row]) -> list[Row]:
    """Trace rows, and the micro rows that add shapes: GEMMs and attention anywhere, others beyond the traces."""
    seen = {row.kernel for row in traces}
    largest: dict[terms.Group, float] = defaultdict(float)
    for row in traces:
        group = terms.group(row.kernel)
        largest[group] = max(largest[group], work(row.kernel)[1])

    def adds(row: Row) -> bool:
        beyond = work(row.kernel)[1] > 1.3 * largest[terms.group(row.kernel)]
        return row.kernel not in seen and (
            terms.group(row.kernel)[0] in FITTED or beyond
        )

    extra = [row for row in micro if adds(row)]
    return sorted(
        traces + extra,
        key=lambda row: (
            row.kernel.kind,
            row.kernel.layout,
            row.kernel.dtype,
            row.kernel.shape,
            row.kernel.bytes,
        ),
    )


@dataclass(frozen=True)
class Line:
    """Times of microbenchmarks, overhead + factor x the time in a step; `scatter` is what is left, in log time."""

    overhead: float
    factor: float
    scatter: float

    def __str__(self) -> str:
        return f"overhead {self.overhead * 1e6:.1f} us, factor {self.factor:.3f}, scatter {self.scatter:.1%}"

    def in_a_step(self, row: Row) -> Row:
        """The row without its own overhead, on the scale of the traces, at least as uncertain as the line."""
        time = max(row.duration - self.overhead, 0.3 * row.duration) / self.factor
        noise = round(max(row.noise, self.scatter), 3)
        return replace(row, duration=time, noise=noise)


def line(in_steps: np.ndarray, raw: np.ndarray) -> Line:
    """The line through measured times (`raw`) over those in steps, by relative least squares, twice.

    The second time leaves out what lies more than a quarter off: shapes for which cuBLAS chose another kernel.
    """
    keep = np.ones(len(raw), bool)
    for _ in range(2):
        design = np.stack([1.0 / raw[keep], in_steps[keep] / raw[keep]], axis=1)
        ones = np.ones(int(keep.sum()))
        overhead, factor = np.linalg.lstsq(design, ones, rcond=None)[0]
        if overhead < 0:  # then the factor alone
            ratios = raw[keep] / in_steps[keep]
            overhead, factor = 0.0, float(np.exp(np.log(ratios).mean()))
        ratio = raw / (overhead + factor * in_steps)
        keep = np.abs(np.log(ratio)) < 0.25
    return Line(float(overhead), float(factor), float(np.std(np.log(ratio))))
