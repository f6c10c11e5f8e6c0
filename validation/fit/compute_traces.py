"""Rows of kernels from Kineto traces of training steps."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from prestep.sim.costs import terms
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.tables import Row
from prestep.sim.graph.kernel import Kernel
from prestep.validation.fit.full_clock import HALVES, at_full_clock, of_trace, offset
from prestep.validation.formats.kineto_kernels import (
    Call,
    read_adamw_launches,
    read_calls,
)

HELD_OUT = (
    "8b-fsdp4-b1.default.rank0",
    "1b-pp4-1f1b-m8.default.rank2",
    "1b-pp4-1f1b-m8.default.rank3",
    "2b-single-b8.default.rank0",
    "1b-ddp4-b6.default.rank0",
)


# Emulated clusters and slowed ranks are not the machine at work. Of compiled steps only TorchInductor's own kernels are
# taken: those steps are denser and run their GEMMs at lower clocks (2 % slower forward, 10 % backward).
LEFT_OUT = ("slow3", "spine")


TRACE_NOISE = 0.01  # relative; traces of one shape differ by 1-2 %


OVERLAPPED_NOISE = 0.05


# The loss gathers one logit per row: how long that takes depends on the targets (two traces of a shape: up to 20 %).
SCATTERED = {"nll_loss_fwd": 0.15, "nll_loss_bwd": 0.10}


def trace_rows(
    calls: Mapping[str, Sequence[Call]],
) -> tuple[list[Row], dict[str, int]]:
    """One row per kernel and shape: the median over all traces of the calls that no collective overlapped."""
    alone, beside = _by_kernel(calls)
    rows, parts = [], {}
    for kernel in alone | beside:
        is_alone = kernel in alone
        chosen = alone[kernel] if is_alone else beside[kernel]
        rows.append(_trace_row(kernel, chosen, is_alone))
        name = "_".join(filter(None, terms.group(kernel)[:2]))
        parts[name] = round(statistics.median(call.parts for _, call in chosen))
    return rows, parts


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


def _full_clock(calls: dict[str, list[Call]], gpu: Gpu) -> dict[str, list[Call]]:
    """Products at full clock; of compiled steps TorchInductor's kernels only."""
    bias = math.exp(offset(calls.values(), gpu.power, gpu.tile_time))

    @cache
    def expected(kernel: Kernel) -> float:
        return gpu.tile_time(kernel) * bias

    done = {}
    for trace, mine in calls.items():
        power = of_trace(mine, gpu.power, expected)
        print(f"{trace}: product power {power.product if power else 1.0}")
        full = at_full_clock(mine, power)
        done[trace] = [
            call for call in full if "compiled" not in trace or _inductors(call.kernel)
        ]
    return done


def _inductors(kernel: Kernel) -> bool:
    return kernel.kind.startswith("fused") or (kernel.kind, kernel.dtype) == (
        "sum",
        "fp32",
    )


def held_out_rows(calls: dict[str, list[Call]]) -> list[Row]:
    """Rows of each held-out trace by itself (source = the trace), for kernels that no collective overlapped."""
    rows = []
    for trace, mine in calls.items():
        alone = {
            trace: [
                call
                for call in mine
                if not call.overlapped and not call.kernel.kind.endswith(HALVES)
            ]
        }
        rows += [replace(row, source=trace) for row in trace_rows(alone)[0]]
    return rows


@dataclass(frozen=True)
class _Traces:
    """Calls by trace, and launches of AdamW in the traces that are fitted to."""

    calls: dict[str, list[Call]]
    launches: list[tuple[int, float]]

    @property
    def fitted(self) -> dict[str, list[Call]]:
        """The traces that are fitted to."""
        return {name: c for name, c in self.calls.items() if name not in HELD_OUT}

    @property
    def held_out(self) -> dict[str, list[Call]]:
        """The others."""
        return {name: c for name, c in self.calls.items() if name in HELD_OUT}


def read_traces(folders: list[Path], gpu: Gpu) -> _Traces:
    """The traces of the machine at work, products at full clock."""
    calls: dict[str, list[Call]] = {}
    launches: list[tuple[int, float]] = []
    ending = ".pt.trace.json.gz"
    paths = [p for folder in folders for p in (folder / "traces").glob(f"*{ending}")]
    for path in sorted(paths):
        trace = path.name.removesuffix(ending)
        if any(word in trace for word in LEFT_OUT):
            continue
        calls[trace] = list(read_calls(path))
        if trace not in HELD_OUT:
            launches += read_adamw_launches(path)
    return _Traces(_full_clock(calls, gpu), launches)
