"""What `prestep kernel` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from prestep.sim.commands._shared import echo_json
from prestep.sim.costs import Gpu, load_gpu
from prestep.sim.costs.kinds import arithmetic, work
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.kernel import Kernel
from prestep.sim.units import count, format_bandwidth, format_duration


def kernel(
    kind: str, shape: str, gpu: str, dtype: str, layout: str, json_: bool
) -> None:
    product = kind.startswith("gemm")
    asked = Kernel(kind, _sizes(shape), dtype, layout or ("nt" if product else ""))
    table = {"gpu": gpu, **_times(load_gpu(gpu), asked)}
    if json_:
        echo_json(table)
        return
    click.echo(f"{kind} {shape} in {dtype} on {gpu}")
    for line in _lines(table):
        click.echo(f"  {line}")


def _times(gpu: Gpu, asked: Kernel) -> dict[str, Any]:
    """Times of a kernel, what bounds it, and what that rests on."""
    time, alone = gpu.in_step(asked), gpu.duration(asked)
    flops, (_, size) = arithmetic(asked), work(asked)
    # What tensor cores do not compute, CUDA cores do, in 32 bits whatever the format of the operands.
    units = asked.dtype if work(asked)[0] > 0 else "fp32"
    return {
        "time": time,
        "time_alone": alone,
        "flops": flops,
        "bytes": size,
        "flop_rate": None if flops is None else flops / time,
        "flop_rate_alone": None if flops is None else flops / alone,
        "bandwidth": size / time,
        "intensity": None if flops is None or not size else flops / size,
        "ridge": gpu.roofline.ridge(units),
        "bound": _bound(gpu, flops or 0.0, size, units),
        "evidence": gpu.evidence(asked),
    }


def _bound(gpu: Gpu, flops: float, size: float, units: str) -> str:
    """What takes longest at the limits of the GPU: its arithmetic, its HBM, or the shortest kernel there is."""
    least = {
        "launch": gpu.floor,
        "memory": size / gpu.bandwidth,
        "arithmetic": flops / gpu.roofline.peak_of(units),
    }
    return max(least, key=lambda name: least[name])


def _lines(table: dict[str, Any]) -> Iterator[str]:
    """The page for people."""
    times = {"in a step": "time", "alone": "time_alone"}
    for name, key in times.items():
        flops, time = table["flops"], table[key]
        rate = f"{flops / time / 1e12:.1f} TFLOP/s, " if flops else ""
        moved = format_bandwidth(table["bytes"] / time)
        yield f"{name:10} {format_duration(time)}: {rate}{moved}"
    if table["intensity"] is None:
        of_bytes = "operations not counted"
    else:
        of_bytes = f"{count(table['intensity'])} flop/byte"
    ridge = f"the ridge is at {count(table['ridge'])}"
    yield f"bound by   {table['bound']}: {of_bytes}, {ridge}"
    yield f"rests on   {table['evidence']}"


def _sizes(shape: str) -> tuple[int, ...]:
    """The sizes of a kernel: numbers with commas between them.

    Raises
    ------
    InputError
        If they are none.
    """
    parts = shape.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        expected = "whole numbers, such as 16384,8192,1280"
        raise InputError(Mistake("command line", "SHAPE", f'"{shape}"', expected))
    return tuple(int(part) for part in parts)
