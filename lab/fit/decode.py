"""`python -m lab.fit.decode`: kernels of decoding on an H100, and how well a law of three constants has them.

`lab/cases/kernels/harness/decode.py` measured them. A fifth of the shapes is held out by
`lab.formats.library_rows.held_out`; it is printed beside the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lab import CASES
from lab.formats.library_rows import held_out
from prestep.sim.costs import Gpu, load_gpu
from prestep.sim.rl.decode import MEASURED_ON, SAMPLED, Law, laws

ROWS = CASES / "kernels" / "decode.jsonl"
BF16, FP8 = 2.0, 1.0
OUTLIER = 0.05  # relative errors above it count by their size, not by its square
GUESS = (3e-6, 1e-9, 0.9)


@dataclass(frozen=True)
class Family:
    """Rows of a law.

    Attributes
    ----------
    kernel
        Their name in the file.
    held
        Columns that a shape consists of; one is held out with all its rows and batches.
    moved, depth, flops
        Bytes, elements one after the other and arithmetic of every row.
    dtype, peak
        Number format in the file, where it has several, and that of the peak that arithmetic is bound by.
    """

    kernel: str
    held: tuple[str, ...]
    moved: Callable[[pd.DataFrame], pd.Series]
    depth: Callable[[pd.DataFrame], pd.Series]
    flops: Callable[[pd.DataFrame], pd.Series]
    dtype: str = ""
    peak: str = "bf16"

    def has(self, line: Mapping[str, Any]) -> bool:
        """Whether a line of the file is a row of it."""
        same = line.get("dtype", "") == self.dtype if self.dtype else True
        return bool(line.get("kernel") == self.kernel and same)


def _none(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(0.0, index=rows.index)


FAMILIES: Mapping[str, Family] = {
    "product": Family(
        "product",
        ("n", "k"),
        lambda r: BF16 * (r.n * r.k + r.m * (r.n + r.k)),
        lambda r: r.k,
        lambda r: 2.0 * r.m * r.n * r.k,
        dtype="bf16",
    ),
    "product_fp8": Family(
        "product",
        ("n", "k"),
        lambda r: FP8 * (r.n * r.k + r.m * r.k) + BF16 * r.m * r.n,
        lambda r: r.k,
        lambda r: 2.0 * r.m * r.n * r.k,
        dtype="fp8_block",
        peak="fp8",
    ),
    "experts": Family(
        "experts_triton",
        ("n", "k", "experts"),
        lambda r: BF16 * r.experts * (r.n * r.k + r.each * (r.n + r.k)),
        lambda r: r.k,
        lambda r: 2.0 * r.experts * r.each * r.n * r.k,
    ),
    "attention": Family(
        "decode_cudnn",
        ("batch", "heads", "kv_heads", "context"),
        lambda r: 2 * BF16 * r.batch * r.context * r.kv_heads * r.dim,
        lambda r: r.context,
        _none,
    ),
    "latent_attention": Family(
        "decode_latent",
        ("batch", "heads", "context"),
        lambda r: BF16 * r.batch * r.context * (r["rank"] + r.rope),
        lambda r: r.context,
        _none,
    ),
    "sampling": Family(
        "sampling",
        ("batch", "vocab"),
        lambda r: SAMPLED * r.batch * r.vocab,
        _none,
        _none,
    ),
}


def measured(family: Family, path: Path = ROWS) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows for fitting, and those that are held out."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    rows = pd.DataFrame([line for line in lines if family.has(line)])
    shapes = rows[list(family.held)].astype(int).itertuples(index=False)
    held = np.array([held_out(shape) for shape in shapes])
    return rows[~held], rows[held]


def seconds(law: Law, family: Family, rows: pd.DataFrame, gpu: Gpu) -> np.ndarray:
    """Times of rows by a law."""
    busy = family.flops(rows) / gpu.peak[family.peak]
    parts = zip(family.moved(rows), family.depth(rows), busy, strict=True)
    return np.array([law.seconds(gpu, *part) for part in parts])


def errors(law: Law, family: Family, rows: pd.DataFrame, gpu: Gpu) -> np.ndarray:
    """Logarithms of predicted over measured times."""
    return np.log(seconds(law, family, rows, gpu) / (rows.us.to_numpy() * 1e-6))


def fitted(family: Family, rows: pd.DataFrame, gpu: Gpu) -> Law:
    """The law whose relative errors are least."""

    def law(logs: np.ndarray) -> Law:
        start, step, share = (float(value) for value in np.exp(logs))
        return Law(start, step, share, "fitted")

    found = least_squares(
        lambda logs: errors(law(logs), family, rows, gpu),
        np.log(GUESS),
        loss="soft_l1",
        f_scale=OUTLIER,
    )
    return law(found.x)


def main() -> None:
    gpu = load_gpu(MEASURED_ON)
    for name, family in FAMILIES.items():
        rows, held = measured(family)
        law = fitted(family, rows, gpu)
        told = f"start {law.start:.3g} s, step {law.step:.3g} s, share {law.share:.3g}"
        print(f"[{name}] {told}")
        for kind, some in (("fitted", rows), ("held out", held)):
            _print(f"  {kind}", errors(law, family, some, gpu))
            _print(f"  {kind}, laws.toml", errors(laws()[name], family, some, gpu))


def _print(what: str, logs: np.ndarray) -> None:
    if len(logs) == 0:
        print(what, "no rows")
        return
    size = np.abs(logs)
    median, ninetieth = np.median(size), np.quantile(size, 0.9)
    told = f"{len(logs)} rows, median {median:.1%}, 90th percentile {ninetieth:.1%}"
    print(f"{what}: {told}, bias {np.mean(logs):+.1%}")


if __name__ == "__main__":
    main()
