"""What a prediction rests on: GPU x family of kernels x number format; `prestep list gpus` says a line of each GPU."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import replace

from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu, names
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.graph.kernel import Kernel, attention, product
from prestep.sim.units import percent

FORMATS = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")
#: Pixels of a picture's channels in and out, and operations of its convolution, whose filters are single pixels.
PIXELS, MULTIPLIED = 64 * 56 * 56 * (256 + 64), 2.0 * 64 * 56 * 56 * 256 * 64
#: A typical kernel of each family: those of a layer of an 8B model, of experts, of ResNet-50.
TYPICAL = {
    "products": product((8192, 4096, 4096)),
    "experts": Kernel("aten _grouped_mm", (16, 2**16, 2048, 4096), layout="nt"),
    "attention": attention((1, 32, 8, 8192, 128)),
    "attention, backward": attention((1, 32, 8, 8192, 128), backward=True),
    "elementwise": Kernel("aten add", (2**25,), bytes=6.0 * 2**25),
    "norms": Kernel("aten _fused_rms_norm", (8192, 4096), bytes=2.0**27),
    "convolutions": Kernel(
        "aten convolution",
        (64, 256, 56, 56, 64, 1, 1, 1, 1),
        layout="channels_last",
        bytes=2.0 * PIXELS,
        flops=MULTIPLIED,
    ),
}
BY_FORMAT = ("products", "experts")


def grades(gpu: Gpu) -> dict[str, str]:
    """Evidence of a typical kernel in a step, by family; of products and experts by format ("products bf16")."""
    return {
        name: gpu.evidence(_in_format(kernel, dtype))
        for family, kernel in TYPICAL.items()
        for name, dtype in formats_of(family, gpu.peak)
    }


def _in_format(kernel: Kernel, dtype: str) -> Kernel:
    """The same in another format; a product as programs ask for it there."""
    if kernel.is_product:
        return product(kernel.shape, dtype)
    return replace(kernel, dtype=dtype)


def formats_of(family: str, computed: Collection[str]) -> list[tuple[str, str]]:
    """Formats of a family among those that a GPU computes, with the name of each."""
    if family not in BY_FORMAT:
        return [(family, "bf16")]
    return [(f"{family} {dtype}", dtype) for dtype in FORMATS if dtype in computed]


def matrix() -> dict[str, dict[str, str]]:
    """Grades of all GPUs."""
    return {name: grades(load_gpu(name)) for name in names()}


def summary(name: str) -> str:
    """A line about a GPU: its families by what they rest on, the surest first; then its libraries' tables."""
    by_grade: dict[str, list[str]] = {}
    for family, grade in grades(load_gpu(name)).items():
        by_grade.setdefault(grade, []).append(family)
    order = [
        each
        for each in ("measured", "fitted", "datasheet", "guess")
        if each in by_grade
    ]
    parts = [f"{grade}: {', '.join(by_grade[grade])}" for grade in order]
    return "; ".join([*parts, *_held_out(name)])


def _held_out(name: str) -> list[str]:
    """Errors of a GPU's libraries at shapes that their tables lack; nothing where it has none."""
    own = {column: error for (gpu, column), error in table_errors().items() if gpu == name}  # fmt: skip
    if not own:
        return []
    each = [f"{column} {percent(half)}, {percent(most)}" for column, (half, most) in own.items()]  # fmt: skip
    return [f"tables of libraries, median error and 90th percentile at held-out shapes: {'; '.join(each)}"]  # fmt: skip


def table_errors() -> dict[tuple[str, str], tuple[float, float]]:
    """Median and 90th percentile of the error of packaged tables, by GPU and "products bf16"."""
    with (HARDWARE / "library-errors.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["gpu"], f"{row['family']} {row['dtype']}"): (
                float(row["median"]),
                float(row["ninetieth"]),
            )
            for row in csv.DictReader(file)
        }
