"""Kernels that run for seconds: watts, clock and time of a call, as a long step has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from lab.measure.attention import attention
from lab.measure.case import Call, Case, Tensors
from lab.measure.edges import long_products
from lab.measure.machine import Meter
from lab.measure.plan import planned
from lab.measure.products import product

WARM, COUNTED = 0.5, 1.3  # seconds before the energy counts, and while it does
CHUNK = 0.04  # s of calls between two looks at the clock
SHAPES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (16384, 8192, 2048),
    (128, 8192, 8192),
)
# family, op, size, and what the setting holds
CHOSEN: tuple[tuple[str, str, tuple[int, ...], dict[str, Any]], ...] = (
    ("scaled_mm", "_scaled_mm", (8192, 8192, 8192), {"scaling": "tensorwise"}),
    ("mm", "mm", (4096, 2048, 2048), {"dtype": "fp32", "layout": "nt"}),
    ("mm", "mm", (16384, 4096, 1024), {"dtype": "tf32", "layout": "nt"}),
    ("pointwise", "add", (2**28,), {"dtype": "bf16"}),
    ("pointwise", "silu", (2**26,), {"dtype": "bf16"}),
    ("pointwise", "clone", (2**28,), {"dtype": "fp32"}),
    ("pointwise", "zero_", (2**28,), {"dtype": "fp32"}),
    ("pointwise", "add", (2**20,), {"dtype": "bf16"}),
    ("norm", "layer_norm", (16384, 768), {"dtype": "bf16"}),
    ("softmax", "softmax", (4, 32, 2048, 2048), {"dtype": "bf16", "out": "bf16"}),
    ("reduction", "sum", (16384, 4096), {"dtype": "bf16", "dim": 0}),
    (
        "conv",
        "conv2d",
        (128, 64, 64, 56, 3, 1, 1),
        {"dtype": "bf16", "channels_last": True},
    ),
    (
        "batch_norm",
        "batch_norm",
        (128, 256, 56),
        {"dtype": "bf16", "channels_last": True},
    ),
    ("foreach", "_foreach_mul_scalar_", (1, 2**28), {"dtype": "fp32"}),
    ("memcpy", "to_gpu", (2**30,), {}),
    ("copy", "contiguous_transposed", (16384, 4096), {"dtype": "bf16"}),
)


def sustained() -> list[Case]:
    """Products in both formats of 16 bits, attention both ways, and one of each kind that memory bounds."""
    cases = [*long_products()]
    cases += [product(*shape, "bf16", "nt") for shape in SHAPES]
    for backend in ("cudnn", "flash"):
        cases += attention((4, 32, 8, 4096, 128), backend, {"causal": True})
    everything = planned()
    for family, op, size, wanted in CHOSEN:
        cases += [
            case for case in everything
            if (case.family, case.op, case.size) == (family, op, size) and wanted.items() <= case.setting.items()
        ][:2]  # fmt: skip
    return cases


def rows(on: Tensors, seconds: float) -> Iterator[dict[str, Any]]:
    """One row a case, and one of a GPU that waits, as long as there is time."""
    meter, until = Meter(), time.perf_counter() + seconds
    yield _row({"op": "idle"}, *_energy(meter, lambda: time.sleep(CHUNK), 1))
    for case in sustained():
        if time.perf_counter() > until:
            return
        about = {
            "family": case.family,
            "op": case.op,
            "way": case.way,
            "size": case.size,
            "set": case.setting,
        }
        try:
            call = case.make(on)
            yield _row(about, *_energy(meter, call, _count(call)))
        except RuntimeError as error:
            yield {"kind": "power", **about, "error": str(error)[:300]}


def _row(
    about: dict[str, Any],
    watts: float | None,
    each: float,
    clocks: list[float],
    celsius: float | None,
) -> dict[str, Any]:
    mean = sum(clocks) / len(clocks) if clocks else None
    return {
        "kind": "power",
        **about,
        "watts": watts,
        "s": each,
        "clock_hz": mean,
        "celsius": celsius,
    }


def _count(call: Call) -> int:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return max(1, int(CHUNK / (time.perf_counter() - begin)))


def _energy(
    meter: Meter, call: Call, count: int
) -> tuple[float | None, float, list[float], float | None]:
    """Mean watts, seconds of a call, clocks seen; the GPU always has a chunk in its queue while one is waited for."""
    _load(call, count, WARM, meter)
    before, begin = meter.joules(), time.perf_counter()
    calls, clocks = _load(call, count, COUNTED, meter)
    elapsed, after = time.perf_counter() - begin, meter.joules()
    watts = None if before is None or after is None else (after - before) / elapsed
    return watts, elapsed / calls, clocks, meter.celsius()


def _load(
    call: Call, count: int, seconds: float, meter: Meter
) -> tuple[int, list[float]]:
    begin, calls, clocks, previous = time.perf_counter(), 0, [], None
    while time.perf_counter() - begin < seconds:
        for _ in range(count):
            call()
        event = torch.cuda.Event()
        event.record()
        if previous is not None:
            previous.synchronize()
            clocks.append(meter.clock())
        previous, calls = event, calls + count
    torch.cuda.synchronize()
    return calls, [clock for clock in clocks if clock is not None]
