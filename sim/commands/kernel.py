"""Predict how long a GPU takes for one kernel, in a step and alone, what bounds it, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from prestep.sim.commands._shared import as_json, echo_json, explained
from prestep.sim.errors import InputError, did_you_mean
from prestep.sim.extras import lazily
from prestep.sim.units import count, format_bandwidth, format_duration

with lazily():
    from prestep.sim import costs
    from prestep.sim.costs import kinds
    from prestep.sim.graph import kernel as kernels
    from prestep.workloads.operators import rules

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep kernel gemm 16384,8192,1280 --gpu h100 --dtype fp64\n"
    "  prestep kernel copy 33554432 --gpu h100 --explain\n"
    "  prestep kernel aten.mm.default 8192,4096,4096\n"
    "  prestep kernel aten.topk 4096,32768 --bytes 270532608\n",
)
@click.argument("kind")
@click.argument("shape")
@click.option("--gpu", default="h200", show_default=True, help="A GPU's name.")
@click.option("--dtype", default="bf16", show_default=True, help="Number format.")
@click.option(
    "--layout",
    default="",
    help="Of a product: nn, nt (a linear layer; the default), tn.",
)
@click.option(
    "--bytes",
    "moved",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Bytes read and written; by default its kind's, or those of SHAPE, read and written once.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say which estimators were asked, and which one answered.",
)
@as_json
@explained
def command(
    kind: str,
    shape: str,
    gpu: str,
    dtype: str,
    layout: str,
    moved: float,
    explain: bool,
    json_: bool,
) -> None:
    asked = _asked(kind, _sizes(shape), dtype, layout, moved)
    model = costs.load_gpu(gpu)
    table = {"gpu": gpu, **_times(model, asked)}
    if json_:
        echo_json(table)
        return
    click.echo(f"{kind} {shape} in {dtype} on {gpu}")
    for line in (*_lines(table), *(_chain(model, asked) if explain else ())):
        click.echo(f"  {line}")


def _asked(
    kind: str, shape: tuple[int, ...], dtype: str, layout: str, moved: float
) -> kernels.Kernel:
    """The kernel, also by the name that results have ("aten.mm.default"); a product as programs ask for it."""
    operation = kind.removeprefix("aten.").split(".")[0]
    name, at = kernels.PREFIX + operation, "command line"
    if kind in kinds.KINDS or (kind == operation and operation not in rules.RULES):
        name = name if kind not in kinds.KINDS and name in kinds.KINDS else kind
    elif name not in kinds.KINDS and not moved:
        # Captures count the bytes of such an operation from its tensors.
        if operation not in rules.RULES:
            hint = did_you_mean(operation, rules.RULES)
            raise InputError.of(at, "KIND", f'"{kind}"', "one with --bytes", hint)
        if dtype not in kinds.DTYPE_BYTES:
            raise InputError.of(at, "--dtype", f'"{dtype}"', "one with --bytes")
        moved = 2 * kinds.DTYPE_BYTES[dtype] * math.prod(shape)
    if name in (kernels.GEMM, "aten mm"):
        return kernels.product(shape, dtype, layout or "nt")
    asked = kernels.named(name, shape, dtype, layout, moved)
    return replace(asked, layout=layout or "nt") if asked.is_product else asked


def _chain(gpu: costs.Gpu, asked: kernels.Kernel) -> Iterator[str]:
    """The estimators that passed, each with what it is for, and the one that answered."""
    yield "estimators, in the order in which they are asked:"
    for estimator in gpu.chain:
        if estimator.answers(asked):
            basis = gpu.basis(asked)
            why = basis.reason or "the GPU's own measurements reach it"
            yield f"  {estimator.name} answers: {why} ({basis.grade})"
            return
        yield f"  {estimator.name} passes: it is for {estimator.covers}"


def _times(gpu: costs.Gpu, asked: kernels.Kernel) -> dict[str, Any]:
    """Times of a kernel, what bounds it, and what that rests on."""
    time, alone = gpu.in_step(asked), gpu.duration(asked)
    if gpu.power is not None:  # the clock falls to what the limit allows
        time *= gpu.load(asked).slowest
    flops, (_, size) = kinds.arithmetic(asked), kinds.work(asked)
    # What tensor cores do not compute, CUDA cores do, in 32 bits whatever the format of the operands.
    units = asked.dtype if kinds.work(asked)[0] > 0 else "fp32"
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


def _bound(gpu: costs.Gpu, flops: float, size: float, units: str) -> str:
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
        raise InputError.of("command line", "SHAPE", f'"{shape}"', expected)
    return tuple(int(part) for part in parts)
