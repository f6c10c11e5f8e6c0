"""What `prestep kernel` does."""

from __future__ import annotations

from typing import Any

import click

from sim.commands._shared import echo_json
from sim.costs import load_gpu
from sim.costs.kinds import work
from sim.errors import InputError, Mistake
from sim.graph.kernel import Kernel
from sim.units import format_bandwidth, format_duration


def kernel(
    kind: str, shape: str, gpu: str, dtype: str, layout: str, json_: bool
) -> None:
    product = kind.startswith("gemm")
    asked = Kernel(kind, _sizes(shape), dtype, layout or ("nt" if product else ""))
    on = load_gpu(gpu)
    time = on.duration(asked)
    flops, size = work(asked)
    table: dict[str, Any] = {
        "gpu": gpu,
        "time": time,
        "flops": flops,
        "bytes": size,
        "flop_rate": flops / time,
        "bandwidth": size / time,
        "evidence": on.evidence(asked),
    }
    if json_:
        echo_json(table)
        return
    click.echo(f"{kind} {shape} in {dtype} on {gpu}: {format_duration(time)}")
    click.echo(f"  {flops / time / 1e12:.1f} TFLOP/s, {format_bandwidth(size / time)}")
    click.echo(f"  rests on: {table['evidence']}")


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
