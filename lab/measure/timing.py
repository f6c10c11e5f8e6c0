"""Times cases: the host in a call, calls back to back, and each kernel by the profiler with a cold and a warm L2."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lab.measure.case import Call, Case, Tensors
from lab.measure.machine import Meter
from lab.measure.trace import MARK, Kernel, kernels_by_mark

AIM = 0.02  # seconds of timed calls
FLUSH = (
    2**27
)  # bytes that a copy reads, and as many that it writes, before each cold call
IN_GRAPH = 16
COOL = 0.05  # seconds at most to wait for the clock that the case before has lowered
LISTED = 12  # tensors of an operation that are written out
SHORT = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64",
    torch.int32: "i32", torch.uint8: "u8", torch.bool: "b8", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8e5",
    torch.complex64: "c64",
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Writes down the ATen operations below autograd: name and operands, as a recording of a program has them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[list[Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operands, _ = tree_flatten((args, kwargs or {}))
        shown = [_text(each) for each in operands]
        if len(shown) > LISTED:
            shown = [*shown[:LISTED], f"+{len(shown) - LISTED}"]
        self.operations.append([str(func).removeprefix("aten."), shown])
        return func(*args, **(kwargs or {}))


def _text(value: Any) -> Any:
    """Returns an operand as text; of a storage its bytes, since its own text has every element."""
    if isinstance(value, torch.UntypedStorage):
        return f"storage[{value.nbytes()}]"
    if not isinstance(value, torch.Tensor):
        return (
            value
            if isinstance(value, (int, float, bool, type(None)))
            else str(value).removeprefix("torch.")
        )
    shape = ",".join(map(str, value.shape))
    strides = "" if value.is_contiguous() else ":" + ",".join(map(str, value.stride()))
    where = "" if value.is_cuda else "@" + value.device.type
    return f"{SHORT.get(value.dtype, str(value.dtype))}[{shape}]{strides}{where}"


@dataclass
class Bench:
    """Times on one GPU; everything runs on one stream of its own, so that a CUDA graph can hold a backward pass too."""

    on: Tensors
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on.device == "cuda":
            self._source = torch.randn(FLUSH // 4, device="cuda")
            self._target = torch.empty_like(self._source)
            self._pool = torch.cuda.graph_pool_handle()
            self._meter = Meter()
            self._full = self._meter.clock() or 0.0
            self._keeps_pool = _graph(lambda: self._target[:1].zero_(), 1, self._pool)

    def plain(self, case: Case) -> dict[str, Any]:
        """Without a profiler: operations, seconds of the host and back to back, bytes allocated in a call."""
        call = case.make(self.on)
        with Recorder() as recorder:
            call()
        row: dict[str, Any] = {"aten": _counted(recorder.operations)}
        if self.on.device != "cuda":
            return row
        call()
        self._cool()
        torch.cuda.reset_peak_memory_stats()
        before, begin = torch.cuda.memory_allocated(), time.perf_counter()
        call()
        torch.cuda.synchronize()
        once = time.perf_counter() - begin
        row["temp_bytes"] = torch.cuda.max_memory_allocated() - before
        row |= _back_to_back(call, _runs(once, 3, 30), self._meter)
        return row | self._in_graph(call) if case.graph and once < 1e-4 else row

    def _cool(self) -> None:
        """Waits until the clock is back at its highest: under a power limit a heavy case slows the ones after it."""
        torch.cuda.synchronize()
        until = time.perf_counter() + COOL
        while time.perf_counter() < until:
            clock = self._meter.clock() or self._full
            self._full = max(self._full, clock)
            if clock > 0.99 * self._full:
                return
            time.sleep(0.004)

    def _in_graph(self, call: Call) -> dict[str, Any]:
        """Seconds of one of sixteen calls in a CUDA graph, median of five replays."""
        try:
            graph = _graph(call, IN_GRAPH, self._pool)
        except RuntimeError as error:
            return {"graph_error": str(error)[:200]}
        values = []
        for _ in range(6):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            values.append(begin.elapsed_time(end) * 1e-3 / IN_GRAPH)
        return {"graph_s": _median(values[1:])}

    def traced(
        self, cases: Iterable[tuple[int, Case, float]]
    ) -> dict[int, dict[str, Any]]:
        """By the profiler, several cases (number, case, seconds of a call) in one session: kernels and their times."""
        activities = [
            torch.profiler.ProfilerActivity.CPU,
            torch.profiler.ProfilerActivity.CUDA,
        ]
        clocks: dict[int, float | None] = {}
        failed = {}
        with torch.profiler.profile(activities=activities) as profile:
            for number, case, once in cases:
                try:
                    clocks[number] = self._marked(number, case, _runs(once, 3, 7))
                except RuntimeError as error:
                    failed[number] = {"error": f"with the profiler: {error}"[:300]}
            torch.cuda.synchronize()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            marked = kernels_by_mark(json.loads(path.read_text()))
        rows = {
            number: {"traced_clock_hz": clock, **self._row(marked, number)}
            for number, clock in clocks.items()
        }
        return rows | failed

    def _marked(self, number: int, case: Case, runs: int) -> float | None:
        """Cold calls, then warm ones; the clock when most of them are still in the queue or have just run."""
        call = case.make(self.on)
        call()
        self._cool()
        for _ in range(runs):
            self._target.copy_(self._source)
            with torch.profiler.record_function(f"{MARK}{number} cold"):
                call()
        for _ in range(runs):
            with torch.profiler.record_function(f"{MARK}{number} warm"):
                call()
        return self._meter.clock()

    def _row(
        self, marked: dict[str, list[list[Kernel]]], number: int
    ) -> dict[str, Any]:
        cold, warm = (
            _usual(marked.get(f"{number} {state}", [])) for state in ("cold", "warm")
        )
        if not cold or not cold[0]:
            return {"kernels": []}
        kernels = [
            [
                self.names.setdefault(kernel.name, len(self.names)),
                kernel.grid,
                kernel.block,
                _at(cold, at),
                _at(warm, at),
            ]
            for at, kernel in enumerate(cold[0])
        ]
        span = _median(run[-1].begin + run[-1].s - run[0].begin for run in cold)
        return {
            **_totals("cold", cold),
            **_totals("warm", warm),
            "span_s": span,
            "kernels": _folded(kernels),
        }


def _totals(state: str, runs: list[list[Kernel]]) -> dict[str, float]:
    totals = [sum(kernel.s for kernel in run) for run in runs]
    return {f"{state}_s": _median(totals), f"{state}_min_s": _sig(min(totals))}


def _at(runs: list[list[Kernel]], place: int) -> float | None:
    """Of the kernel at that place; None where cold and warm calls have not the same kernels."""
    return (
        _median(run[place].s for run in runs) if runs and place < len(runs[0]) else None
    )


def _graph(call: Call, count: int, pool: Any) -> Any:
    """Captured on the current stream, without the emptying of caches that `torch.cuda.graph` begins with."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(pool=pool)
    try:
        for _ in range(count):
            call()
    finally:
        graph.capture_end()
    return graph


def _back_to_back(call: Call, runs: int, meter: Meter) -> dict[str, Any]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stamps = [time.perf_counter()]
    begin.record()
    for _ in range(runs):
        call()
        stamps.append(time.perf_counter())
    end.record()
    clock = meter.clock()
    torch.cuda.synchronize()
    each = [after - before for before, after in itertools.pairwise(stamps)]
    return {
        "host_s": _median(each),
        "s": _sig(begin.elapsed_time(end) * 1e-3 / runs),
        "runs": runs,
        "clock_hz": clock,
    }


def _runs(once: float, least: int, most: int) -> int:
    return int(min(max(AIM / max(once, 1e-7), least), most))


def _usual(runs: list[list[Kernel]]) -> list[list[Kernel]]:
    """Runs with the number of kernels that most have."""
    if not runs:
        return []
    count = statistics.mode(len(run) for run in runs)
    return [run for run in runs if len(run) == count]


def _folded(kernels: list[list[Any]]) -> list[list[Any]]:
    """Kernels in order; of more than twenty, those of one name, grid and block with their summed times and count."""
    if len(kernels) <= 20:
        return kernels
    groups: dict[str, list[Any]] = {}
    for name, grid, block, cold, warm in kernels:
        group = groups.setdefault(
            f"{name} {grid} {block}", [name, grid, block, 0.0, 0.0, 0]
        )
        group[3:] = [
            _sig(group[3] + cold),
            _sig(group[4] + (warm or 0.0)),
            group[5] + 1,
        ]
    return list(groups.values())


def _counted(operations: list[list[Any]]) -> list[list[Any]]:
    """Operations in order; of a long list each different one once, with its count."""
    if len(operations) <= LISTED:
        return operations
    counts: dict[str, list[Any]] = {}
    for name, operands in operations:
        entry = counts.setdefault(name, [name, operands, 0])
        entry[2] += 1
    return list(counts.values())


def _median(values: Iterable[float]) -> float:
    return _sig(statistics.median(values))


def _sig(value: float) -> float:
    """Six digits: times in nanoseconds need no more."""
    return float(f"{value:.6g}")
