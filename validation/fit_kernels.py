"""Fits of the parametric kernel times: plain least squares, so that a rerun needs nothing but numpy."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from sim.costs import gemm, terms
from sim.costs.gpu import Gpu
from sim.costs.kernel import Kernel
from sim.costs.kinds import work
from sim.costs.tables import Row

# Shortest such operation, s (guess; the traces hold no small ones): keeps small batches from costing nothing.
STARTS = {
    "conv_fwd": 3e-6, "conv_dgrad": 3e-6, "conv_wgrad": 3e-6, "rms_norm_fwd": 1.5e-6, "rms_norm_bwd": 3e-6,
    "rms_norm_bwd_input": 1.5e-6, "rms_norm_bwd_weight": 1.5e-6,
    "batchnorm_fwd": 5e-6, "batchnorm_bwd": 5e-6,
}  # fmt: skip


def fit_terms(rows: list[Row]) -> dict[str, list[float]]:
    """Non-negative coefficients of every linear kind, by relative least squares."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        kind, layout, _ = terms.group(row.kernel)
        if kind in terms.LINEAR:
            grouped[kind, layout].append(row)
    return {"_".join(filter(None, key)): _nonnegative(mine, terms.LINEAR[key[0]][0]) for key, mine in grouped.items()}


def _nonnegative(rows: list[Row], term: terms.Terms) -> list[float]:
    """Least squares of term / time = 1 by active set: drop negative coefficients until none is left."""
    design = np.array([term(row.kernel) for row in rows]) / np.array([[row.duration * row.noise] for row in rows])
    start = STARTS.get(rows[0].kernel.kind, 0.0)
    target = np.array([max(0.2, 1.0 - start / row.duration) / row.noise for row in rows])
    # A weak pull towards a 1 us start keeps kinds with one or two rows solvable and growing.
    size = np.abs(design).max(axis=0)
    # One or two shapes cannot tell a start-up time from work: then all of it is work.
    keep = [i for i in range(0 if len(rows) > 2 else 1, design.shape[1]) if size[i] > 0]
    while True:
        scaled = design[:, keep] / size[keep]
        found = np.linalg.solve(scaled.T @ scaled + 1e-6 * np.eye(len(keep)) * target.mean() ** 2, scaled.T @ target)
        if (found >= 0).all():
            break
        keep.pop(int(found.argmin()))
    coefficients = [start] + [0.0] * (design.shape[1] - 1)
    for i, value in zip(keep, found, strict=True):
        coefficients[i] += float(value / size[i])
    return coefficients


def fit_gemm(rows: list[Row], gpu: Gpu) -> dict[str, float]:
    """Constants of the tile model by coordinate search on the mean squared log error of the bf16 rows."""
    mine = [row for row in rows if row.kernel.kind == "gemm" and row.kernel.dtype == "bf16"]
    best: dict[str, float] = asdict(gemm.TYPICAL)

    def loss(constants: dict[str, float]) -> float:
        model = gemm.TileModel(**constants)
        errors = []
        for row in mine:
            m, n, k = row.kernel.shape
            time = model.time((m, n, k), gpu.sms, gpu.peak["bf16"], gpu.bandwidth, work(row.kernel)[1])
            errors.append(math.log(time / row.duration) ** 2 / (row.noise**2 + 0.05**2))
        return sum(errors) / len(errors)

    value = loss(best)
    for step in (1.3, 1.12, 1.05, 1.02):
        improved = True
        while improved:
            improved = False
            for name, old in list(best.items()):
                for factor in (step, 1 / step):
                    trial = {**best, name: old * factor}
                    possible = max(trial["efficiency"], trial["memory_efficiency"]) <= 1.0
                    if possible and (found := loss(trial)) < value - 1e-9:
                        best, value, improved = trial, found, True
    return best


def fit_gemm_model(rows: list[Row], gpu: Gpu) -> Callable[[Kernel], float]:
    """The wave model with constants fitted to `rows`."""
    model = gemm.TileModel(**fit_gemm(rows, gpu))

    def time(kernel: Kernel) -> float:
        m, n, k = kernel.shape
        return model.time((m, n, k), gpu.sms, gpu.roofline.peak_of(kernel.dtype), gpu.bandwidth, work(kernel)[1])

    return time


def adamw_launches(launches: list[tuple[int, float]]) -> tuple[list[tuple[float, float]], float]:
    """Launch time by chunks (monotone) and the slowdown of launches over untouched embedding rows."""
    by_chunks: dict[int, list[float]] = defaultdict(list)
    for chunks, time in launches:
        by_chunks[chunks].append(time)
    full = by_chunks[320]
    dense = statistics.median(t for t in full if t < 130e-6)
    sparse = statistics.median(t for t in full if t >= 150e-6) / dense
    points = [(float(c), statistics.median(t)) for c, t in sorted(by_chunks.items()) if c != 320] + [(320.0, dense)]
    rising: list[tuple[float, float]] = []
    for count, time in points:
        rising.append((count, max(time, rising[-1][1] if rising else 0.0)))
    return rising, sparse
