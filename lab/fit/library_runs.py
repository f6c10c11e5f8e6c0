"""Products under load: published ones, and those of a library's runs that drew what a GPU may draw.

    python -m lab.fit.library_runs power_gemm.parquet

writes `lab/cases/kernels/at-limit.csv`: long products of the table's own stack that drew what the GPU may draw.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab import CASES
from lab.formats import library_rows
from lab.formats.published_kernels import published, rows_of
from prestep.sim.costs.estimators.library import ProductTable, rows_of_library
from prestep.sim.costs.facts import Stack
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.kinds import work
from prestep.sim.costs.library_families import PRODUCTS
from prestep.sim.costs.library_table import Library
from prestep.sim.graph.kernel import product

LONG = 100e-6  # s at peak: shorter products are starts and tails, not clocks
#: Share of the power limit from which on a product is slowed by it.
AT_LIMIT = 0.95
MOST = 1000  # rows of a GPU and format
LEAST = 512  # rows and columns of a product that fills a GPU
STACK, KERNEL = "trtllm", "torch_flow"
ROWS = CASES / "kernels" / "at-limit.csv"
#: Who measured products under long load: random data after 10,000 warm-ups (Azure), or at the limit of the watts.
LOADED = {
    ("h100", "fp8"): "azure",
    ("h200", "fp8"): "azure",
    # Only lent: in bf16 the GPU's file has SimuMax's load, in fp8 its steps take products from tiles.
    ("b200", "bf16"): "watts",
    ("b200", "fp8"): "watts",
    ("gb200", "bf16"): "watts",
    ("gb200", "fp8"): "watts",
    ("gb200", "nvfp4"): "watts",
}
#: Formats whose load stands in the file of a GPU: its own, or the median of other GPUs' where nobody ran it so long.
OWN = {"gb200": ("bf16", "fp8", "nvfp4")}
LENT = {"b300": ("bf16", "fp8"), "gb300": ("bf16", "fp8")}
#: GPUs whose load over bursts by their tile model `published_gemm` writes.
TILED = {"bf16": ("a100", "a100-pcie", "b200")}


def _by_shape(who: Library) -> dict[tuple[int, ...], float]:
    shapes, seconds = rows_of_library(PRODUCTS, who)
    return dict(zip(map(tuple, shapes.tolist()), seconds.tolist(), strict=True))


def under_load(gpu: Gpu, dtype: str, stack: Stack) -> float:
    """Median time of long products under load over what they take otherwise."""
    if LOADED[gpu.name, dtype] == "watts":
        return float(np.median([*_over_bursts(gpu, dtype, stack)]))
    return float(np.median([*_over_steps(gpu, dtype, stack)]))


def lent_load(loads: Sequence[float]) -> tuple[float, float]:
    """Median of what load adds on other GPUs, and how far each of them is from the median of the rest (RMS of logs)."""
    apart = [
        math.log(load / np.median([*loads[:at], *loads[at + 1 :]]))
        for at, load in enumerate(loads)
    ]
    return float(np.median(loads)), float(np.sqrt(np.mean(np.square(apart))))


def _over_bursts(gpu: Gpu, dtype: str, stack: Stack) -> Iterator[float]:
    """Of the table's own stack, run until the GPU drew what it may, over its short runs of the same shapes."""
    short = _by_shape(Library(gpu.name, dtype, stack.source, stack.kernel))
    rows = pd.read_csv(ROWS)
    mine = rows[(rows["gpu"] == gpu.name) & (rows["dtype"] == dtype)]
    for m, n, k, us in mine[["m", "n", "k", "us"]].itertuples(index=False):
        if (m, n, k) in short:
            yield us * 1e-6 / short[m, n, k]


def _over_steps(gpu: Gpu, dtype: str, stack: Stack) -> Iterator[float]:
    """Of Azure, over what steps take by the library."""
    who = Library(gpu.name, dtype, stack.source, stack.kernel)
    table = ProductTable(who, stack, gpu.roofline, gpu.tile_time)
    for row in rows_of(gpu.name, "gemm", LOADED[gpu.name, dtype], published())[dtype]:
        kernel = product(row.kernel.shape, dtype, row.kernel.layout)
        if work(kernel)[0] / gpu.peak[dtype] > LONG:
            share = stack.share_of(kernel.layout)
            yield row.seconds / (share * table.seconds(kernel))


def write(samples: Path) -> None:
    """Rows with watts of aiconfigurator's samples, those at the limit."""
    rows = pd.read_parquet(samples)
    large = (rows[["m", "n", "k"]] >= LEAST).all(axis=1)
    limited = rows["power"] > AT_LIMIT * rows["power_limit"]
    stack = rows["framework"].str.lower() == STACK
    ours = rows[large & limited & stack & (rows["kernel_source"] == KERNEL)]
    kept = pd.DataFrame(
        {
            "gpu": ours["system"].map(library_rows.GPUS),
            "dtype": ours["gemm_dtype"].map(library_rows.DTYPES),
            **{name: ours[name] for name in ("m", "n", "k")},
            "us": (ours["latency"] * 1e3).round(1),
            "watts": ours["power"].round(),
            "source": STACK + "/" + ours["version"],
        }
    )
    long = kept[
        (kept["us"] > LONG * 1e6) & kept["dtype"].isin(("bf16", "fp8", "nvfp4"))
    ]
    mixed = long.sort_values([*long]).sample(frac=1.0, random_state=0)
    some = mixed.groupby(["gpu", "dtype"]).head(MOST)
    some.sort_values([*some]).to_csv(ROWS, index=False)


def main() -> None:
    """Write the rows at the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    write(parser.parse_args().samples)


if __name__ == "__main__":
    main()
