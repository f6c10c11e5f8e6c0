"""Fits the tile model and the correction tables of GPUs whose kernels others measured and published.

    python -m lab.fit.published_gemm        # writes <gpu>-published.toml and .csv beside the facts of each GPU

Reads `sim/costs/hardware/published.csv`. A third of the shapes is held out of every fit of constants; the table of
corrections that is written has all rows. Prints the errors that lab/notes/costs.md states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fit.kernels import leave_one_out, tile_time, write_rows
from lab.fit.published_others import NOISE, OTHERS, fit_others, other_rows
from lab.fit.published_tiles import optimum
from lab.formats.published_kernels import (
    LAUNCH,
    Published,
    published,
    rows_of,
)
from prestep.sim.costs.gemm import TileModel
from prestep.sim.costs.gpu import HARDWARE, Gpu, load
from prestep.sim.costs.kinds import work
from prestep.sim.costs.tables import Kriged, Row
from prestep.sim.costs.terms import GEMM_AXES
from prestep.sim.graph.kernel import Kernel, product

LENGTH = 2.0  # octaves, as on H200


@dataclass(frozen=True)
class Fit:
    """A fitted GPU and number format: errors are mean absolute logs, of the base alone and with the corrections."""

    gpu: str
    dtype: str
    constants: dict[str, float]
    quantize: float  # s per element of the activations, measured with the product
    call: float  # s of a call beyond the kernel's own start
    spread: float
    rows: tuple[Row, ...]  # net of call and quantizing
    fitted: tuple[int, float, float]
    held_out: tuple[int, float, float]


def held_out(kernel: Kernel) -> bool:
    """A third of the shapes, the same for every GPU and format."""
    m, n, k = (int(math.log2(size) * 7.3) for size in kernel.shape)
    return (m + 2 * n + 5 * k) % 3 == 0


HEAD = (
    "| GPU | format | fitted | tiles, with table | held out | tiles, with table | table | call | quantizing |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def fit(rows: Sequence[Published], gpu: Gpu) -> Fit:
    """Constants from the rows that are not held out; errors on both parts."""
    out = np.array([held_out(row.kernel) for row in rows])
    best, base = optimum(rows, gpu, out)
    spread = float(base[~out].std())
    quantize = best.pop("quantize", 0.0)
    call = max(0.0, best["floor"] - LAUNCH)
    best["floor"] -= call
    net = tuple(_net(row, call, quantize) for row in rows)
    both = _corrected(net, out, tile_time(TileModel(**best), gpu), spread)
    fitted, others = (_mean_errors(base, both, part) for part in (~out, out))
    dtype = rows[0].kernel.dtype
    return Fit(gpu.name, dtype, best, quantize, call, spread, net, fitted, others)


def _net(row: Published, call: float, quantize: float) -> Row:
    """A row without the call's overhead and the quantizing of its activations."""
    m, _, k = row.kernel.shape
    time = row.seconds - call - quantize * m * k
    return Row(row.kernel, time, NOISE, 1, row.source)


def _corrected(
    rows: Sequence[Row],
    out: np.ndarray,
    base: Callable[[Kernel], float],
    spread: float,
) -> np.ndarray:
    """Logarithmic errors with a table of the rows that are not held out, each of those predicted by the others."""
    used = [row for row, is_out in zip(rows, out, strict=True) if not is_out]
    table = Kriged(used, base, GEMM_AXES, LENGTH, spread)
    errors = np.array([math.log(table(row.kernel) / row.duration) for row in rows])
    errors[~out] = leave_one_out(table)
    return errors


def _mean_errors(
    base: np.ndarray, both: np.ndarray, part: np.ndarray
) -> tuple[int, float, float]:
    """Rows of a part, and their mean errors by tiles alone and with the table."""
    alone, with_table = np.abs(base[part]).mean(), np.abs(both[part]).mean()
    return int(part.sum()), float(alone), float(with_table)


# (GPU, source) of sustained load: what it is compared with is the short bursts' tile model. Random data after 10,000
# warm-ups (Azure), at length (SimuMax). What Hoppers take longer their power limit says (`sim/costs/power.py`).
SUSTAINED = {
    "a100": ("a100", "azure"),
    "a100-pcie": ("a100-pcie", "simumax"),
    "b200": ("b200", "simumax"),
}
# Formats for which better is known than bursts: the H200's own tables, and for the same SMs in the H100 its traces.
OWN = {"h200": ("bf16", "fp8"), "h100": ("bf16",)}
LONG = 100e-6  # s at peak: shorter products are launches and tails, not clocks
BURSTS = {"a100-pcie": "a100"}


def sustained(
    fits: dict[tuple[str, str], Fit], rows: Sequence[Published]
) -> dict[str, dict[str, tuple[float, int]]]:
    """Median of measured under load over the burst's time, with the number of products, by GPU and format."""
    medians: dict[str, dict[str, tuple[float, int]]] = {}
    for name, (gpu, source) in SUSTAINED.items():
        burst = BURSTS.get(name, name)
        made = medians.setdefault(name, {})
        for dtype, mine in rows_of(gpu, "gemm", source, rows).items():
            fitted = fits[burst, {"fp16": "bf16"}.get(dtype, dtype)]
            time = tile_time(TileModel(**fitted.constants), load(burst))
            made[fitted.dtype] = _median(mine, fitted.dtype, time)
    return medians


def _median(
    rows: Sequence[Published], dtype: str, time: Callable[[Kernel], float]
) -> tuple[float, int]:
    """Median of measured times of long products over those of a burst, and their number."""
    ratios = []
    for row in rows:
        kernel = product(row.kernel.shape, dtype)
        if work(kernel)[0] / load(row.gpu).peak[dtype] > LONG:
            ratios.append(row.seconds / time(kernel))
    return float(np.median(ratios)), len(ratios)


Factors = dict[str, dict[str, tuple[float, int]]]


def main() -> None:
    """Fits, writes and reports."""
    rows = published()
    fits = {
        (gpu, dtype): fit(mine, load(gpu))
        for gpu in dict.fromkeys(row.gpu for row in rows)
        for dtype, mine in rows_of(gpu, "gemm", "aiconfigurator", rows).items()
    }
    factors = sustained(fits, rows)
    print("\n".join([*HEAD, *map(_line, fits.values())]))
    for gpu in dict.fromkeys([*(gpu for gpu, _ in fits), *factors]):
        mine = [fit_ for (name, _), fit_ in fits.items() if name == gpu]
        _write_gpu(gpu, mine, rows, factors.get(gpu, {}))
    rounded = {
        gpu: {dtype: (round(value, 3), n) for dtype, (value, n) in by.items()}
        for gpu, by in factors.items()
    }
    print("\nsustained:", rounded)


def _write_gpu(
    gpu: str,
    fits: Sequence[Fit],
    rows: Sequence[Published],
    factors: dict[str, tuple[float, int]],
) -> None:
    """Writes the constants and the table of one GPU."""
    others = other_rows(OTHERS[gpu], rows) if gpu in OTHERS else []
    terms, report = fit_others(others) if others else ({}, "")
    if report:
        print(f"\n{gpu}: {report}")
    used = [fit_ for fit_ in fits if fit_.dtype not in OWN.get(gpu, ())]
    _write(gpu, used, terms, factors)
    table = [row for fit_ in used if helps(fit_) for row in fit_.rows] + others
    if table:
        write_rows(HARDWARE / f"{gpu}-published.csv", sorted(table, key=by_kernel))


def helps(f: Fit) -> bool:
    """Whether corrections predict left-out rows of the fitted part better than the tile model alone."""
    return f.fitted[2] < f.fitted[1]


def _line(f: Fit) -> str:
    (n, base, both), (out, base_out, both_out) = f.fitted, f.held_out
    return (
        f"| {f.gpu} | {f.dtype} | {n} | {base:.1%}, {both:.1%} | {out} | {base_out:.1%}, {both_out:.1%} | "
        f"{'yes' if helps(f) else 'no'} | {f.call * 1e6:.1f} us | {f.quantize * 1e12:.2f} ps |"
    )


def _write(
    gpu: str,
    fits: Sequence[Fit],
    terms: dict[str, list[float]],
    factors: dict[str, tuple[float, int]],
) -> None:
    """Writes the constants of a GPU; the H200 has terms and corrections of its own."""
    lines = [
        "# Written by lab/fit/published_gemm.py; do not edit. Times in s. Grade: fitted. Source: published.csv"
    ]
    lines += _products(fits)
    if gpu != "h200":
        lines += _correction(fits) if terms or fits else []
        lines += _terms(terms)
    if factors:
        why = (
            "time of products under long load over a burst's; median over long products"
        )
        lines += ["", f"[sustained]  # {why}"]
        for dtype, (value, n) in factors.items():
            lines.append(f"{dtype} = {value:.3f}  # {n} products")
    (HARDWARE / f"{gpu}-published.toml").write_text("\n".join(lines) + "\n")


def _products(fits: Sequence[Fit]) -> list[str]:
    """The tile model of each number format."""
    if not fits:
        return []
    why = "tile model by format; a call's overhead and the activations' quantizing are taken off"
    lines = ["", f"[products]  # {why}"]
    for fit_ in fits:
        values = (f"{name} = {value:.5g}" for name, value in fit_.constants.items())
        lines.append(f"{fit_.dtype} = {{ {', '.join(values)} }}")
    return lines


def _correction(fits: Sequence[Fit]) -> list[str]:
    """How far corrections reach."""
    spread = max([fit_.spread for fit_ in fits if helps(fit_)], default=0.1)
    return [
        "",
        "[correction]  # length in octaves, spread in log time",
        "default = { length = 3.0, spread = 0.15 }",
        f"gemm = {{ length = {LENGTH}, spread = {spread:.3f} }}",
    ]


def _terms(terms: dict[str, list[float]]) -> list[str]:
    """Coefficients of attention and grouped products."""
    if not terms:
        return []
    lines = ["", "[terms]  # see sim/costs/terms.py"]
    for key, values in sorted(terms.items()):
        lines.append(f"{key} = [{', '.join(f'{c:.5g}' for c in values)}]")
    return lines


def by_kernel(row: Row) -> tuple[str, str, str, tuple[int, ...]]:
    """What tables of published kernels are sorted by."""
    kernel = row.kernel
    return kernel.kind, kernel.dtype, kernel.layout, kernel.shape


if __name__ == "__main__":
    main()
