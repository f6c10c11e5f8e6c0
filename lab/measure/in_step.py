"""`python -m lab.measure.in_step --out FILE.jsonl`: operations alone on a cool GPU, and between products on a hot one.

A table of short runs is at the highest clock, a step is not: products bring the GPU to its power limit, and what runs
between them finds a lower clock. Each row has both times of one operation, of one process and GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lab.measure import machine
from lab.measure.attention import attention
from lab.measure.case import Call, Case, Tensors
from lab.measure.machine import Meter
from lab.measure.plan import identity, planned, timed
from lab.measure.products import linear, product
from lab.measure.timing import Bench
from lab.measure.trace import MARK, kernels_by_mark

BATCH = 24  # cases in one session of the profiler
RUNS = 7
HEAT = 0.35  # s of products before a case, after the first
FIRST_HEAT = 3.0  # s of products before the first
BESIDE = 6  # products of 8,192 cubed before each call: 9 ms
#: batch, heads, key and value heads, length, head dimension
ATTENTION = (
    (4, 32, 8, 2048, 64), (2, 32, 8, 4096, 128), (4, 16, 16, 2048, 128), (1, 32, 8, 8192, 128), (8, 32, 8, 2048, 128),
    (2, 8, 8, 8192, 128), (8, 16, 16, 1024, 64), (2, 32, 32, 2048, 96), (2, 32, 8, 8192, 96), (2, 8, 4, 2048, 256),
    (1, 32, 4, 8192, 256), (1, 8, 1, 2048, 64), (16, 12, 12, 512, 64), (4, 20, 20, 2048, 80),
)  # fmt: skip
PRODUCTS = (
    (8192, 8192, 8192), (4096, 4096, 4096), (16384, 2048, 8192), (8192, 14336, 4096), (8192, 4096, 14336),
    (4096, 32000, 4096), (2048, 2048, 2048), (2048, 1024, 4096), (4096, 1024, 4096), (1024, 8192, 2048),
    (8192, 2560, 14336), (16384, 1024, 1024),
)  # fmt: skip
#: Layers with a bias, which a plain product of the same size stands beside: tokens, outputs, inputs.
BIASED = (
    (2048, 8192, 8192), (4096, 8192, 2048), (1024, 8192, 8192), (8192, 4096, 16384), (16384, 3072, 768),
    (16384, 768, 3072), (8192, 4096, 1024), (4096, 1024, 8192), (2048, 2048, 8192), (65536, 1024, 1024),
)  # fmt: skip
#: Families and operations of which a few cases each are taken.
STREAMS = (
    ("pointwise", "add"),
    ("pointwise", "silu"),
    ("norm", "layer_norm"),
    ("norm", "rms_norm"),
    ("softmax", "softmax"),
    ("optimizer", "adamw"),
    ("conv", "conv2d"),
    ("batch_norm", "batch_norm"),
    ("index", "index_put"),
    ("index", "index_put_accumulate"),
    ("pointwise", "mul"),
    ("pointwise", "cast"),
)
EACH = 8


def cases() -> Iterator[Case]:
    """Attention by three libraries, products in the layouts of forward and backward, and what memory bounds."""
    for shape in ATTENTION:
        for backend in ("cudnn", "flash", "efficient"):
            yield from attention(shape, backend, {"causal": True})
    for m, n, k in PRODUCTS:
        for layout in ("nt", "nn", "tn"):
            yield product(m, n, k, "bf16", layout)
    for tokens, out, into in BIASED:
        yield linear(tokens, out, into, "bf16", 0)
        yield product(tokens, out, into, "bf16", "nt")
    everything = planned()
    for family, op in STREAMS:
        own = [case for case in everything if (case.family, case.op) == (family, op)]
        yield from own[:: max(1, len(own) // EACH)][:EACH]


class Hot:
    """Calls between products that hold the GPU at its power limit."""

    def __init__(self, on: Tensors) -> None:
        self._left, self._right = (on.normal(8192, 8192) for _ in range(2))
        self._meter = Meter()

    def heat(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(20):
                self._left @ self._right
            torch.cuda.synchronize()

    def marked(self, number: int, call: Call) -> float | None:
        """Calls it among products, marked for the profiler; returns the clock after the last."""
        for _ in range(RUNS):
            for _ in range(BESIDE):
                self._left @ self._right
            with torch.profiler.record_function(f"{MARK}{number} hot"):
                call()
        clock = self._meter.clock()
        torch.cuda.synchronize()
        return clock


def hot_rows(
    hot: Hot, on: Tensors, numbered: list[tuple[int, Case]]
) -> dict[int, dict[str, Any]]:
    """Seconds of the kernels of each case on the hot GPU: the median, and each run's."""
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        torch.profiler.ProfilerActivity.CUDA,
    ]
    clocks: dict[int, float | None] = {}
    with torch.profiler.profile(activities=activities) as profile:
        for number, case in numbered:
            call = case.make(on)
            call()
            hot.heat(HEAT)
            clocks[number] = hot.marked(number, call)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        marked = kernels_by_mark(json.loads(path.read_text()))
    rows = {}
    for number, clock in clocks.items():
        runs = marked.get(f"{number} hot", [])
        times = [float(f"{sum(k.s for k in run):.6g}") for run in runs]
        middle = sorted(times)[len(times) // 2] if times else None
        rows[number] = {"hot_s": middle, "hot_runs": times, "hot_clock_hz": clock}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument(
        "--beside",
        type=Path,
        help="rows of an earlier run: its cases are not timed again",
    )
    options = parser.parse_args()
    until = time.perf_counter() + options.seconds
    torch.manual_seed(0)
    torch.cuda.set_stream(torch.cuda.Stream())
    on = Tensors("cuda")
    bench, hot = Bench(on), Hot(on)
    with options.out.open("a") as file:

        def put(**cells: Any) -> None:
            file.write(json.dumps(cells, separators=(",", ":")) + "\n")
            file.flush()

        put(**machine.described())
        earlier = timed(options.beside, "in_step") if options.beside else set()
        waiting = [
            (n, case) for n, case in enumerate(cases()) if identity(case) not in earlier
        ]
        hot.heat(FIRST_HEAT)
        for start in range(0, len(waiting), BATCH):
            if time.perf_counter() > until:
                put(kind="skipped", first=start, count=len(waiting) - start)
                break
            _batch(bench, hot, waiting[start : start + BATCH], put)
    return 0


def _batch(bench: Bench, hot: Hot, numbered: list[tuple[int, Case]], put: Any) -> None:
    plain: dict[int, dict[str, Any]] = {}
    for number, case in numbered:
        try:
            plain[number] = bench.plain(case)
        except Exception as error:
            plain[number] = {"error": f"{type(error).__name__}: {error}"[:200]}
            torch.cuda.synchronize()
    well = [(n, case) for n, case in numbered if "error" not in plain[n]]
    # Hot before cool: whoever waits for the highest clock waits once a batch.
    hots = hot_rows(hot, bench.on, well)
    cool = bench.traced((n, case, plain[n].get("s", 0.0)) for n, case in well)
    torch.cuda.empty_cache()
    for number, case in numbered:
        put(
            kind="in_step",
            n=number,
            family=case.family,
            op=case.op,
            way=case.way,
            size=case.size,
            set=case.setting,
            **plain[number],
            **cool.get(number, {}),
            **hots.get(number, {}),
        )


if __name__ == "__main__":
    sys.exit(main())
