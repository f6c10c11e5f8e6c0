"""`python -m lab.fit.library_steps`: what to take off a library's times to have those of kernels in steps.

Compares kernels of steps and of PyTorch on an H200 (and an H100) with a library's tables of these GPUs; writes
the shapes, which no constant was fitted to.

In fp8 a call and its quantizing are told from the product by the tile model of each GPU (`published_gemm`): PyTorch's
products on an H100 and an H200, which say both, are the test of that.
"""

from __future__ import annotations

import tomllib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from lab.fit.library_lines import HEAD, LOAD, line
from lab.fit.library_runs import LENT, LOADED, OWN, TILED, lent_load, under_load
from lab.fit.published_gemm import Fit, fit
from lab.formats.published_kernels import published
from lab.formats.published_kernels import rows_of as published_of
from prestep.sim.costs import aten, load_gpu
from prestep.sim.costs.estimators.library import (
    REACH,
    rows_of_library,
)
from prestep.sim.costs.facts import Stack
from prestep.sim.costs.gemm import TileModel
from prestep.sim.costs.gpu import Gpu, parts
from prestep.sim.costs.gpu_files import HARDWARE, aten_of
from prestep.sim.costs.library_families import PRODUCTS
from prestep.sim.costs.library_table import Library, LibraryTable
from prestep.sim.costs.spreads import widths
from prestep.sim.costs.tables import read_operations
from prestep.sim.graph.kernel import Kernel, plain_product, product

SOURCE, KERNEL = "trtllm/1.3.0rc20", "torch_flow"
SHORTEST = 10e-6  # s: shorter kernels are starts, which a call hides
LONGEST = 1e-3  # s: longer calls repeat until power lowers the clock
PARTS = 3  # one of so many shapes is held out
HOPPERS = ("h100", "h200")
#: GPUs that take the library's products in steps, and in which formats (lab/notes/costs.md says why not all).
TAKE = {
    "b300": ("products_fp8",),
    "gb200": ("products_fp8",),
    "gb300": ("products_bf16", "products_fp8"),
}


@dataclass(frozen=True)
class Pair:
    """A kernel that both a library and steps of a GPU have: seconds, and elements that a call reads over bytes/s."""

    gpu: str
    kernel: Kernel
    library: float
    step: float
    per_byte: float

    @property
    def rearranged(self) -> bool:
        """Whether a call reads its elements before the kernel does: to quantize them."""
        return self.kernel.dtype != "bf16"

    @property
    def held_out(self) -> bool:
        return zlib.crc32("x".join(map(str, self.kernel.shape)).encode()) % PARTS == 0


@dataclass(frozen=True)
class Constants:
    """Of a family in a format: seconds of a call, bytes of an element, time in a step over the rest by layout."""

    call: float
    moved: float
    shares: dict[str, float]

    @property
    def printed(self) -> str:
        return ", ".join(f"{key} {value:.3f}" for key, value in self.shares.items())

    def step(self, pair: Pair) -> float:
        rest = pair.library - self.call - self.moved * pair.per_byte
        return rest * self.shares[pair.kernel.layout]


def around(gpu: str) -> tuple[float, float]:
    """Seconds of a call in fp8 on a GPU, and the bytes of each element that it quantizes, by its tile model."""
    made = published_fit(gpu)
    return made.call, made.quantize * load_gpu(gpu).bandwidth


@cache
def published_fit(gpu: str) -> Fit:
    """The tile model of a GPU's products in fp8, with their calls and quantizing."""
    rows = published_of(gpu, "gemm", "aiconfigurator", published())["fp8"]
    return fit(rows, load_gpu(gpu))


def products_of(gpu: str) -> list[tuple[Kernel, float]]:
    """Products in bf16 whose rows lie well, and their seconds."""
    path = aten_of(gpu)
    assert path is not None
    return [
        (plain_product(row.kernel), row.duration)
        for row in read_operations(path)
        if row.kernel.kind == "aten mm" and row.kernel.dtype == "bf16"
        if row.kernel.layout in ("nt", "nn", "tn")
    ]


def scaled(gpu: str) -> list[tuple[Kernel, float]]:
    """Products in fp8 as PyTorch runs them there (`torch._scaled_mm`): the activations are quantized before.

    Those with exact sums: sums in fewer bits are Hopper's alone.
    """
    path = aten_of(gpu)
    assert path is not None
    return [
        (product(row.kernel.shape[-3:], "fp8"), row.duration)
        for row in read_operations(path)
        if row.kernel.kind == "aten _scaled_mm" and row.kernel.dtype == "fp8"
        if not row.kernel.layout.endswith(aten.FAST)
    ]


def pairs(gpu: str, dtype: str, measured: Iterable[tuple[Kernel, float]]) -> list[Pair]:
    """Products within the reach of a GPU's library table that are neither starts nor long enough for power."""
    limits = load_gpu(gpu).roofline
    rows = rows_of_library(PRODUCTS, Library(gpu, dtype, SOURCE, KERNEL))
    table = LibraryTable(PRODUCTS, *rows, limits, dtype)
    found = []
    for kernel, seconds in measured:
        sizes = np.array([kernel.shape])
        near = float(table.beyond(sizes)[0]) < REACH
        if near and SHORTEST < seconds < LONGEST:
            library = float(table.seconds(sizes)[0])
            m, _, k = kernel.shape
            found.append(Pair(gpu, kernel, library, seconds, m * k / limits.bandwidth))
    return found


def fitted(known: Sequence[Pair]) -> Constants:
    """library = call + moved per byte + step / share, in the least squares of relative errors; nothing negative."""
    layouts = [*dict.fromkeys(pair.kernel.layout for pair in known)]
    library = np.array([pair.library for pair in known])
    read = [pair.per_byte * pair.rearranged for pair in known]
    columns = [np.ones(len(known)), np.array(read)]
    columns += [
        np.array([pair.step * (pair.kernel.layout == layout) for pair in known])
        for layout in layouts
    ]
    call, moved, *rest = _not_negative(np.column_stack(columns) / library[:, None])
    shares = {
        name: float(1.0 / value) for name, value in zip(layouts, rest, strict=True)
    }
    return Constants(float(call), float(moved), shares)


def told_apart(known: Sequence[Pair]) -> dict[str, Constants]:
    """Of products in fp8: the call and the quantizing of each GPU by its tile model, and one share for all."""
    ratios = [
        pair.step / Constants(*around(pair.gpu), {"nt": 1.0}).step(pair)
        for pair in known
    ]
    share = {"nt": float(np.median(ratios))}
    gpus = {*(pair.gpu for pair in known), *TAKE}
    return {gpu: Constants(*around(gpu), share) for gpu in sorted(gpus)}


def _not_negative(design: np.ndarray) -> np.ndarray:
    """Coefficients of design x = 1 by least squares, of which negative ones are dropped until none is left."""
    found = np.zeros(design.shape[1])
    active = [*range(design.shape[1])]
    while True:
        active = [column for column in active if design[:, column].any()]
        size = np.abs(design[:, active]).max(axis=0)
        solved, *_ = np.linalg.lstsq(
            design[:, active] / size, np.ones(len(design)), rcond=None
        )
        if (solved >= 0).all():
            found[active] = solved / size
            return found
        active.pop(int(solved.argmin()))


def errors(constants: dict[str, Constants], of: Sequence[Pair]) -> np.ndarray:
    """Signed, as shares of the steps' time."""
    return np.array([constants[pair.gpu].step(pair) / pair.step - 1.0 for pair in of])


def measured_pairs() -> dict[str, list[Pair]]:
    """By family and format, what both have of it."""
    return {
        "products_bf16": pairs("h200", "bf16", products_of("h200")),
        "products_fp8": [
            pair for gpu in ("h100", "h200") for pair in pairs(gpu, "fp8", scaled(gpu))
        ],
    }


def constants_of(
    name: str, known: Sequence[Pair]
) -> tuple[dict[str, Constants], float]:
    """Of all that is not held out, by GPU; the median error on what is."""
    used = [pair for pair in known if not pair.held_out]
    if name == "products_fp8":
        by_gpu = told_apart(used)
    else:
        same = fitted(used)
        by_gpu = dict.fromkeys([*TAKE, *(pair.gpu for pair in known)], same)
    out = errors(by_gpu, [pair for pair in known if pair.held_out])
    _print(name, by_gpu, len(used), out)
    return by_gpu, float(np.median(np.abs(out)))


def _print(name: str, by_gpu: dict[str, Constants], used: int, out: np.ndarray) -> None:
    sizes = np.abs(out)
    half, most = np.median(sizes), np.quantile(sizes, 0.9)
    print(
        f"{name}: {used} fitted; {len(out)} held out: median {half:.1%}, 90th percentile {most:.1%}, "
        f"bias {out.mean():+.1%}"
    )
    for gpu, one in by_gpu.items():
        print(
            f"    {gpu}: call {one.call * 1e6:.1f} us, {one.moved:.1f} bytes an element, shares {one.printed}"
        )


def stack_of(constants: Constants, error: float) -> Stack:
    """What a GPU's file says of a family in a format."""
    shares = constants.shares
    share = shares.get("nt", next(iter(shares.values())))
    nn, tn = (shares.get(layout, share) for layout in ("nn", "tn"))
    call, moved = constants.call, constants.moved
    return Stack(SOURCE, KERNEL, call, moved, share, nn, tn, error)


def write(gpu: str, stacks: dict[str, Stack], loads: dict[str, str]) -> None:
    """The file of a GPU, with its load where long runs of it, or of others, say it."""
    taken = {name: stacks[name] for name in TAKE[gpu]}
    text = HEAD + "\n".join(line(*each) for each in taken.items()) + "\n"
    text += LOAD if loads else ""
    text += "".join(f"{dtype} = {load}\n" for dtype, load in loads.items())
    (HARDWARE / f"{gpu}-libraries.toml").write_text(text, encoding="utf-8")


def measured_loads(stacks: dict[str, dict[str, Stack]]) -> dict[str, dict[str, float]]:
    """What long load adds to products, by format and GPU (or source, where a GPU has two)."""
    loads: dict[str, dict[str, float]] = defaultdict(dict)
    for gpu, dtype in LOADED:
        of = of_bursts(gpu) if dtype == "fp8" and gpu in HOPPERS else load_gpu(gpu)
        # Of runs at the limit of the watts the stack says whose short runs are meant, no more.
        own = stacks.get(gpu, stacks["gb200"])
        stack = own.get(f"products_{dtype}", own["products_fp8"])
        loads[dtype][gpu] = under_load(of, dtype, stack)
    for dtype, gpus in TILED.items():
        for gpu in gpus:
            published = HARDWARE / f"{gpu}-published.toml"
            factor = tomllib.loads(published.read_text("utf-8"))["sustained"][dtype]
            loads[dtype][f"{gpu} over tiles"] = factor
    return loads


def loads_of(gpu: str, loads: dict[str, dict[str, float]]) -> dict[str, str]:
    """Factors of a GPU's file, each with what it rests on."""
    own = {name: f"{loads[name][gpu]:.3f}  # watts" for name in OWN.get(gpu, ())}
    for name in LENT.get(gpu, ()):
        median, error = lent_load([*loads[name].values()])
        if error > widths()["lent"]["fitted"]:
            continue  # then it is a guess, and stands in the GPU's own file
        why = (
            f"median of {', '.join(loads[name])}; others miss each by {error:.1%} (RMS)"
        )
        own[name] = f"{median:.3f}  # {why}"
    return own


def main() -> None:
    """Fit, write and report."""
    made = {name: constants_of(name, known) for name, known in measured_pairs().items()}
    stacks = {
        gpu: {
            name: stack_of(by[gpu], error)
            for name, (by, error) in made.items()
            if gpu in by
        }
        for gpu in (*HOPPERS, *TAKE)
    }
    loads = measured_loads(stacks)
    for dtype, by_gpu in loads.items():
        print(
            f"load in {dtype}: {', '.join(f'{g} {x:.3f}' for g, x in by_gpu.items())}"
        )
    for gpu in TAKE:
        write(gpu, stacks[gpu], loads_of(gpu, loads))


def of_bursts(gpu: str) -> Gpu:
    """A GPU with the tile model of its published products in fp8."""
    facts, rows, like = parts(gpu)
    tiles = TileModel(**published_fit(gpu).constants)
    with_tiles = replace(facts, products={**facts.products, "fp8": tiles})
    return Gpu(gpu, with_tiles, rows, like)


if __name__ == "__main__":
    main()
