"""Fits attention and grouped products to published measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from lab.fit.kernels import fit_terms
from lab.formats.published_kernels import (
    Published,
)
from prestep.sim.costs.gemm import products
from prestep.sim.costs.tables import Kriged, Row
from prestep.sim.costs.terms import LINEAR, group, linear, name
from prestep.sim.graph.kernel import ATTENTION, GROUPS, Kernel

# Noise of one published time, relative (guess: neighbouring shapes of the grids scatter by about 5 %).
NOISE = 0.05


# GPU -> whose published attention and grouped products stand in its table (Azure's FlashAttention 2 of the A100 too).
OTHERS = {"a100": ("a100-pcie", "a100"), "b200": ("b200",)}


def other_rows(gpus: Sequence[str], rows: Sequence[Published]) -> list[Row]:
    """Attention and grouped products; equal shapes by their mean; of weight gradients those added in fp32."""
    grouped: dict[Kernel, list[float]] = {}
    for row in rows:
        added = row.accumulate or row.kernel.layout != "tn"
        if row.gpu in gpus and not row.kernel.is_product and added:
            grouped.setdefault(row.kernel, []).append(row.seconds)
    return [
        Row(kernel, float(np.mean(t)), NOISE, len(t), " ".join(gpus))
        for kernel, t in grouped.items()
    ]


def fit_others(rows: list[Row]) -> tuple[dict[str, list[float]], str]:
    """Terms of attention and grouped products from two thirds of the shapes; a line for the report."""
    out = [_turn(row.kernel) for row in rows]
    fitted = [row for row, o in zip(rows, out, strict=True) if not o]
    terms = fit_terms([row for row in fitted if row.kernel.kind == "aten _grouped_mm"])
    for kind in ATTENTION:
        mine = [row for row in fitted if group(row.kernel)[0] == kind]
        terms[kind] = _scaled(kind, mine)
    return terms, "; ".join(_errors(key, terms[key], rows) for key in terms)


def _errors(key: str, coefficients: list[float], rows: list[Row]) -> str:
    """Mean errors of terms, and of terms with corrections, on the shapes that are held out."""
    mine = [row for row in rows if key == name(*group(row.kernel)[:2])]
    term, axes = LINEAR[group(mine[0].kernel)[0]]
    base = partial(linear, term, coefficients)
    fitted, out = (
        [row for row in mine if _turn(row.kernel) == part] for part in (False, True)
    )
    table = Kriged(fitted, base, axes, 3.0, 0.15)
    shown = [f"{len(fitted)} fitted {_mean(base, fitted):.1%}"]
    if out:
        shown.append(
            f"{len(out)} held out {_mean(base, out):.1%}, with table {_mean(table, out):.1%}"
        )
    return f"{key}: {', '.join(shown)}"


#: Coefficients of attention's terms in steps of an H200 (traces of 2026-11-21; `git log` of h200-kernels.csv has them).
OF_H200 = {
    "attention_fwd": (4.3498e-06, 2.093e-15, 1.755e-13, 1.6182e-12, 4.7453e-13),
    "attention_bwd": (1.7857e-05, 7.4005e-15, 3.3775e-13, 7.0485e-12, 4.3834e-12),
}


def _mean(time: Callable[[Kernel], float], rows: list[Row]) -> float:
    return float(
        np.mean([abs(math.log(time(row.kernel) / row.duration)) for row in rows])
    )


def _scaled(kind: str, rows: Sequence[Row]) -> list[float]:
    """An H200's terms times one factor: published shapes, most of 4,096 positions, cannot tell the terms apart."""
    start, *others = OF_H200[kind]
    body = [linear(LINEAR[kind][0], [0.0, *others], row.kernel) for row in rows]
    factor = float(
        np.median(
            [(row.duration - start) / b for row, b in zip(rows, body, strict=True)]
        )
    )
    return [start, *(factor * c for c in others)]


def _turn(kernel: Kernel) -> bool:
    count, shape = products(kernel)
    sizes = (count, *shape) if kernel.kind in GROUPS else kernel.shape
    return sum(size * 7 for size in (int(math.log2(s) * 5.7) for s in sizes)) % 3 == 0
