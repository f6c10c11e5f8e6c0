"""What a prediction rests on: GPU x family of kernels x number format.

    python -m prestep.sim.tools.support docs/gpus.md

writes the tables between the page's markers; `prestep list gpus` says a line of each GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Collection
from pathlib import Path

from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu, names
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.costs.libraries import libraries
from prestep.sim.costs.library_families import FAMILIES
from prestep.sim.graph.kernel import Kernel
from prestep.sim.units import percent

BEGIN, END = "<!-- gpus: begin -->", "<!-- gpus: end -->"
FORMATS = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")
#: A typical kernel of each family, kind and shape: those of a layer of an 8B model, of experts, of ResNet-50.
TYPICAL = {
    "products": ("gemm", (8192, 4096, 4096), "nt"),
    "experts": ("grouped_gemm", (16, 4096, 2048, 4096), "nt"),
    "attention": ("attention_fwd", (1, 32, 8, 8192, 128), ""),
    "attention, backward": ("attention_bwd", (1, 32, 8, 8192, 128), ""),
    "elementwise": ("add", (2**25,), ""),
    "norms": ("rms_norm_fwd", (8192, 4096), ""),
    "convolutions": ("conv_fwd", (64, 256, 56, 56, 64, 1, 1, 1), ""),
}
BY_FORMAT = ("products", "experts")


def grades(gpu: Gpu) -> dict[str, str]:
    """Evidence of a typical kernel in a step, by family; of products and experts by format ("products bf16")."""
    return {
        name: gpu.evidence(Kernel(kind, shape, dtype, layout))
        for family, (kind, shape, layout) in TYPICAL.items()
        for name, dtype in _formats(family, gpu.peak)
    }


def _formats(family: str, computed: Collection[str]) -> list[tuple[str, str]]:
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


def page() -> str:
    """Grades in a step, what steps take from libraries, and kernels of libraries by format with their errors."""
    return f"{_steps()}\n\n{in_steps()}\n\n{_libraries()}"


def _steps() -> str:
    rows = matrix()
    columns = [name for family in TYPICAL for name, _ in _formats(family, FORMATS)]
    lines = [_line(["GPU", *columns]), _line(["---"] * (len(columns) + 1))]
    for name, row in rows.items():
        lines.append(_line([name, *(row.get(column, "") for column in columns)]))
    return "\n".join(lines)


def _libraries() -> str:
    """Rows of packaged tables and their errors at shapes that they lack, by GPU, family and format."""
    counts: dict[tuple[str, str], int] = {}
    for family in FAMILIES:
        for library, frame in libraries(family).items():
            key = library.gpu, f"{family.name} {library.dtype}"
            counts[key] = counts.get(key, 0) + len(frame)
    errors = table_errors()
    gpus, columns = ([*dict.fromkeys(part)] for part in zip(*counts, strict=True))
    lines = [_line(["GPU", *columns]), _line(["---"] * (len(columns) + 1))]
    for gpu in sorted(gpus):
        keys = [(gpu, column) for column in columns]
        lines.append(_line([gpu, *(_cell(counts.get(k), errors.get(k)) for k in keys)]))
    return "\n".join(lines)


def _cell(rows: int | None, errors: tuple[float, float] | None) -> str:
    """ "10318: 3.9 %, 12.7 %"."""
    if rows is None:
        return ""
    if errors is None:
        return str(rows)
    half, most = errors
    return f"{rows}: {percent(half)}, {percent(most)}"


def table_errors(folder: Path = HARDWARE) -> dict[tuple[str, str], tuple[float, float]]:
    """Median and 90th percentile of the error of packaged tables, by GPU and "products bf16"."""
    with (folder / "library-errors.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["gpu"], f"{row['family']} {row['dtype']}"): (
                float(row["median"]),
                float(row["ninetieth"]),
            )
            for row in csv.DictReader(file)
        }


def in_steps() -> str:
    """What steps take from libraries: GPU, family and format, stack, error on kernels of measured steps."""
    head = ["GPU", "family", "library", "what is taken off", "error"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in names():
        for key, stack in load_gpu(name).facts.libraries.items():
            family, _, dtype = key.partition("_")
            off = f"{stack.call * 1e6:.1f} us, {stack.moved:.1f} bytes an element"
            cells = [name, f"{family} {dtype}", stack.source, off, percent(stack.error)]
            lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(text: str) -> str:
    """A page with the tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{page()}\n{END}{after}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args().page
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
