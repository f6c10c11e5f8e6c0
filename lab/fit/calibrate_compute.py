"""Write a GPU's kernel tables from Kineto traces and microbenchmarks.

    python -m lab.fit.calibrate_compute MEASURED_FOLDER [--gpu h200] [--out sim/costs/hardware]

MEASURED_FOLDER holds `micro.jsonl` and `traces/*.pt.trace.json.gz`. Rows of the held-out traces are never used to fit;
their error is printed at the end.
"""

from __future__ import annotations

import argparse
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lab import CASES
from lab.fit.full_clock import held_out_rows, read_traces
from lab.fit.kernels import (
    adamw_launches,
    fit_gemm,
    fit_gemm_model,
    fit_terms,
    leave_one_out,
    write_rows,
)
from prestep.sim.costs import terms
from prestep.sim.costs.gpu import HARDWARE, Gpu, load
from prestep.sim.costs.tables import Kriged, Row, read_rows
from prestep.sim.graph.kernel import PREFIX, Kernel
from prestep.validation.fit.kernel_rows import (
    FITTED,
    SCATTERED,
    line,
    merge,
    micro_rows,
    trace_rows,
)

LATER = CASES / "h200-kernels" / "micro_4gpu.jsonl"

HEAD = (
    "# Written by lab/fit/calibrate_compute.py; do not edit. Times in s. Grade: fitted.",
    "",
    "[gemm]",
)
CORRECTION = (
    "",
    "[correction]  # Gaussian process on log(measured / base): length in octaves, spread in log time",
    "default = { length = 3.0, spread = 0.15 }",
    "gemm = { length = 2.0, spread = 0.12 }",
)


def write_fitted(
    path: Path,
    coefficients: dict[str, list[float]],
    tiles: dict[str, float],
    launches: list[tuple[float, float]],
    sparse: float,
) -> None:
    """Writes the constants of a GPU that were fitted."""
    points = ", ".join(f"[{chunks:.0f}, {time:.4g}]" for chunks, time in launches)
    lines = [
        *HEAD,
        *(f"{name} = {value:.5g}" for name, value in tiles.items()),
        *CORRECTION,
        # Scattered by the targets: the fit alone.
        *(f"{kind} = {{ length = 3.0, spread = 0.001 }}" for kind in SCATTERED),
        *("", "[terms]  # see sim/costs/terms.py", *_terms(coefficients)),
        *("", "[adamw]  # launch = [chunks of 65,536 elements, s]"),
        *(f"sparse = {sparse:.4g}", f"launch = [{points}]"),
    ]
    path.write_text("\n".join(lines) + "\n")


def _terms(coefficients: dict[str, list[float]]) -> Iterator[str]:
    """Coefficients of each kind, as the file has them."""
    for kind, values in sorted(coefficients.items()):
        yield f"{kind} = [{', '.join(f'{value:.5g}' for value in values)}]"


def report_held_out(rows: list[Row], name: str, folder: Path) -> None:
    """Error of the written model on the held-out rows by kind; each row weighs the time its calls took."""
    gpu = load(name, folder)
    for trace in sorted({row.source for row in rows}):
        sums = _errors([row for row in rows if row.source == trace], gpu)
        print(f"\n{trace}")
        for key, (measured, predicted, wrong) in sorted(
            sums.items(), key=lambda item: -item[1][0]
        ):
            signed, absolute = 100 * (predicted / measured - 1), 100 * wrong / measured
            print(
                f"  {key:22s} {measured * 1e3:9.3f} ms  signed {signed:+6.1f} %  absolute {absolute:5.1f} %"
            )


def _errors(rows: list[Row], gpu: Gpu) -> dict[str, list[float]]:
    """By kind and in total: measured seconds, predicted ones, and those that are wrong."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        measured = row.duration * row.count
        predicted = gpu.duration(row.kernel) * row.count
        values = measured, predicted, abs(predicted - measured)
        for key in (row.kernel.kind, "total"):
            for i, value in enumerate(values):
                sums[key][i] += value
    return sums


def report_leave_one_out(name: str, folder: Path, rows: list[Row]) -> None:
    """Leave-one-out error of every interpolated table, trace and micro rows apart."""
    gpu = load(name, folder)
    for group in sorted({terms.group(row.kernel) for row in rows}):
        model = gpu.tables.model(group)
        if not isinstance(model, Kriged):
            continue
        mine = [row for row in rows if terms.group(row.kernel) == group]
        errors = np.abs(np.expm1(leave_one_out(model)))
        for micro in (False, True):
            which = [
                i for i, row in enumerate(mine) if (row.source == "micro") == micro
            ]
            if which:
                median, mean = (
                    100 * np.median(errors[which]),
                    100 * errors[which].mean(),
                )
                label = f"{' '.join(group)} {'micro' if micro else 'trace'}"
                print(
                    f"  {label:40s} n {len(which):4d}  median {median:5.1f} %  mean {mean:5.1f} %"
                )


def _micro(rows: list[Row], folders: list[Path], later: Path, gpu: Gpu) -> list[Row]:
    """Microbenchmarks of the folders, and of a later run what they lack."""
    files = [folder / "micro.jsonl" for folder in folders]
    first = [
        row
        for file in files
        if file.is_file()
        for row in in_situ(rows, micro_rows(file), gpu)
    ]
    measured = {row.kernel for row in first}
    second = [
        row
        for row in micro_rows(later)
        if row.kernel.kind in FITTED and not kept_apart(row.kernel)
    ]
    corrected = in_situ(rows, second, gpu)
    return first + [row for row in corrected if row.kernel not in measured]


def kept_apart(kernel: Kernel) -> bool:
    """Whether a product or attention of `micro_4gpu.jsonl` is judged on instead of used: a third, by shape."""
    return (
        kernel.kind in FITTED
        and zlib.crc32("x".join(map(str, kernel.shape)).encode()) % 3 == 0
    )


def in_situ(traces: list[Row], micro: list[Row], gpu: Gpu) -> list[Row]:
    """`micro` with the rows of `FITTED` kinds corrected: raw = overhead + factor x (what the traces alone predict).

    The scatter left about that line becomes the rows' noise. A kind without traces keeps its raw times.
    """
    done: list[Row] = []
    for kind in FITTED:
        mine = [row for row in micro if row.kernel.kind == kind]
        done += _in_situ_of(kind, traces, mine, gpu)
    return done + [row for row in micro if row.kernel.kind not in FITTED]


def _in_situ_of(kind: str, traces: list[Row], micro: list[Row], gpu: Gpu) -> list[Row]:
    """The rows of one kind, each as it would have been measured among the kernels of a step."""
    models = _models(kind, [row for row in traces if row.kernel.kind == kind], gpu)
    raw, traced = _shared(micro, models)
    if not len(raw):
        return micro
    fitted = line(traced, raw)
    print(f"micro {kind}: {fitted}")
    return [fitted.in_a_step(row) for row in micro]


def _shared(
    micro: list[Row], models: dict[tuple[str, str], Kriged]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the rows that a table of the traces covers: as measured alone, and as that table has them."""
    groups = [(row, terms.group(row.kernel)[1:]) for row in micro]
    covered = [(row, models[group]) for row, group in groups if group in models]
    raw = np.array([row.duration for row, _ in covered])
    traced = np.array([model(row.kernel) for row, model in covered])
    return raw, traced


def _models(kind: str, rows: list[Row], gpu: Gpu) -> dict[tuple[str, str], Kriged]:
    """A table per (layout, dtype) from the traces alone."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(terms.group(row.kernel)[1:], []).append(row)
    if not rows:
        return {}
    if kind == "gemm":
        tiles = fit_gemm_model(rows, gpu)
        return {
            key: Kriged(mine, tiles, terms.GEMM_AXES, length=2.0, spread=0.12)
            for key, mine in groups.items()
        }
    term, axes = terms.LINEAR[kind]
    base = partial(terms.linear, term, fit_terms(rows)[kind])
    return {
        key: Kriged(mine, base, axes, length=3.0, spread=0.15)
        for key, mine in groups.items()
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("measured", type=Path, nargs="+")
    later = "products and attention of another run"
    add("--later", type=Path, default=LATER, help=later)
    add("--gpu", default="h200")
    add("--out", type=Path, default=HARDWARE)
    return parser.parse_args()


def main() -> None:
    """Fits, writes the tables, and prints their errors."""
    options = _options()
    name, out = options.gpu, options.out
    traces = read_traces(options.measured, load(name, out))
    rows = trace_rows(traces.fitted)
    gpu = load(name, out)
    rows = merge(rows, _micro(rows, options.measured, options.later, gpu))
    # Operations have a table of their own (lab/cases/aten).
    rows = [row for row in rows if not row.kernel.kind.startswith(PREFIX)]
    write_rows(out / f"{name}-kernels.csv", rows)
    tiles, fitted = fit_gemm(rows, gpu), out / f"{name}-fitted.toml"
    launches = adamw_launches(traces.launches)
    write_fitted(fitted, fit_terms(rows), tiles, *launches)
    print(Counter("micro" if row.source == "micro" else "trace" for row in rows), tiles)
    held_out = held_out_rows(traces.held_out)
    write_rows(out / f"{name}-heldout.csv", held_out)
    print("\nleave-one-out")
    report_leave_one_out(name, out, read_rows(out / f"{name}-kernels.csv"))
    report_held_out(held_out, name, out)


if __name__ == "__main__":
    main()
