"""`python -m lab.measure.generated FILE.jsonl`: times the kernels that `torch.compile` makes of small
functions.

Needs one NVIDIA GPU and a PyTorch with Triton. A row is a function at one size, with its kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

CALLS = 6  # under the profiler
SIZES = (1 << 20, 1 << 23, 1 << 26)  # elements
WIDTHS = (1024, 4096)  # of rows: reduced in one go, and in a loop
VOCABULARIES = ((32000, 4096), (50257, 8192), (128256, 4096), (151936, 4096))
EMBEDDINGS = ((32000, 8192, 1024), (50257, 8192, 1024), (128256, 4096, 2048))
NAMED = 110  # characters of a kernel's name
#: Pictures, places and channels where one operand lies with its places last.
ACROSS = ((128, 200, 640), (64, 256, 512), (32, 1024, 256), (256, 100, 1024))


@dataclass(frozen=True)
class Function:
    """What is compiled, with the number of elements that it runs over and its operands."""

    name: str
    elements: int
    call: Callable[..., Any]
    operands: tuple[Any, ...]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def functions() -> Iterator[Function]:
    for elements in SIZES:
        yield from _of_elements(elements)
        yield from _of_rows(elements)
        yield from _rotations(elements)
    for vocabulary, rows in VOCABULARIES:
        logits, targets = normal(rows, vocabulary), _below(vocabulary, rows)
        name, size = f"ce v{vocabulary} bf16", vocabulary * rows
        yield Function(name, size, _loss, (logits, targets))
    for vocabulary, tokens, width in EMBEDDINGS:
        operands = _below(vocabulary, tokens), normal(vocabulary, width)
        yield Function(
            f"embedding v{vocabulary} bf16", tokens * width, F.embedding, operands
        )


def _of_elements(elements: int) -> Iterator[Function]:
    one, other = normal(elements), normal(elements)
    yield Function("scale bf16", elements, lambda x: x * 2 + 1, (one,))
    yield Function("silu_mul bf16", elements, lambda x, y: F.silu(x) * y, (one, other))
    yield Function("gelu_erf bf16", elements, F.gelu, (one,))
    yield Function(
        "gelu_tanh bf16", elements, lambda x: F.gelu(x, approximate="tanh"), (one,)
    )
    yield Function(
        "dropout_add bf16",
        elements,
        lambda x, y: F.dropout(x, 0.1, True) + y,
        (one, other),
    )


def _of_rows(elements: int) -> Iterator[Function]:
    for width in WIDTHS:
        x = normal(elements // width, width)
        weight, bias = normal(width), normal(width)
        yield Function(
            f"layer_norm c{width} bf16",
            elements,
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            (x, weight, bias),
        )
        yield Function(
            f"softmax c{width} fp32 of bf16",
            elements,
            lambda x: torch.softmax(x.float(), -1).to(x.dtype),
            (x,),
        )


def _rotations(elements: int) -> Iterator[Function]:
    """Rotary positions whose sines the kernel computes for every element."""
    heads, width = 32, 64
    length = min(2048, elements // (heads * width))
    batch = elements // (heads * width * length)
    frequencies = 1 / 10000 ** (torch.arange(0, width, 2, device="cuda") / width)
    operands = normal(batch, length, heads, width), frequencies, _range(length)
    yield Function("rope_trig h32 bf16", elements, _rotated, operands)


def _rotated(x: Any, frequencies: Any, positions: Any) -> Any:
    x = x.transpose(1, 2)
    outer = frequencies[None, :, None].float() @ positions[None, None, :].float()
    angles = torch.cat((outer, outer), 1).transpose(1, 2)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


def transposed() -> Iterator[Function]:
    """Functions that read an operand across its rows, beside the same ones that read it along them."""
    for size in ACROSS:
        batch, places, channels = size
        for dtype in (torch.bfloat16, torch.float32):
            name = str(dtype).removeprefix("torch.")
            x = normal(*size, dtype=torch.float32)
            along, across = (
                normal(*size, dtype=dtype),
                normal(batch, channels, places, dtype=dtype),
            )
            weight, bias = (normal(channels, dtype=torch.float32) for _ in range(2))
            for way, y in (("along", along), ("across", across)):
                shape = f"{way} {batch}x{places}x{channels} {name}"
                elements = batch * places * channels
                yield Function(
                    f"add_norm {shape}", elements, _add_norm(way), (x, y, weight, bias)
                )
                yield Function(f"gelu {shape}", elements, _gelu(way), (y,))
                yield Function(
                    f"norm_to {shape}",
                    elements,
                    _norm_to(way, dtype),
                    (x, weight, bias),
                )


def _add_norm(way: str) -> Callable[..., Any]:
    """A residual stream and what is added to it, with the norm of the sum."""

    def add_norm(x: Any, y: Any, weight: Any, bias: Any) -> Any:
        total = x + (y.mT if way == "across" else y)
        return total * F.layer_norm(total, (x.shape[-1],), weight, bias)

    return add_norm


def _gelu(way: str) -> Callable[..., Any]:
    return lambda y: F.gelu(y.mT if way == "across" else y).contiguous()


def _norm_to(way: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A norm whose result lies along or across the rows that it reads."""

    def norm_to(x: Any, weight: Any, bias: Any) -> Any:
        out = F.layer_norm(x, (x.shape[-1],), weight, bias).to(dtype)
        return (out.mT if way == "across" else out).contiguous()

    return norm_to


def _loss(logits: Any, targets: Any) -> Any:
    return F.cross_entropy(logits.float(), targets)


def _below(high: int, count: int) -> Any:
    return torch.randint(0, high, (count,), device="cuda")


def _range(count: int) -> Any:
    return torch.arange(count, device="cuda")


def kernels(function: Function) -> list[dict[str, Any]]:
    """The CUDA kernels of a call and its backward, in the order in which they first run."""
    torch._dynamo.reset()
    compiled = torch.compile(function.call, dynamic=False)
    gradient = torch.randn_like(compiled(*function.operands))

    def step() -> None:
        compiled(*function.operands).backward(gradient)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    on_gpu = [e for e in profiled.events() if "CUDA" in str(e.device_type)]
    for event in sorted(on_gpu, key=lambda e: e.time_range.start):
        times.setdefault(event.name[:NAMED], []).append(event.device_time)
    return [
        {"kernel": name, "n": len(mine), "us": median(mine)}
        for name, mine in times.items()
    ]


def main() -> None:
    with Path(sys.argv[1]).open("a", encoding="utf-8") as out:
        for function in functions():
            row = {
                "name": function.name,
                "elements": function.elements,
                "shapes": [list(each.shape) for each in function.operands],
                "kernels": kernels(function),
            }
            out.write(json.dumps(row) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
