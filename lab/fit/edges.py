"""`python -m lab.fit.edges`: what `lab/cases/aten` adds to the kernel tables of an H200.

Traces of steps have no products of few rows. Cases of the family `mm_rows` do; those held out are left out, and rows of
traces stay as they are. The share of the memory's speed that products reach is fitted again with the new rows; the
other constants of tiles are those of the traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from lab.aten import cases
from lab.fit.kernels import gemm_loss, write_rows
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.costs.tables import Row, read_rows
from prestep.sim.graph.kernel import Kernel

SOURCE = "aten"
NOISE = 0.05  # cold and warm L2 differ by more, of which a step has something between
DTYPE = "bf16"  # the format of the table, whose other rows are in it
SHARES = tuple(share / 100 for share in range(50, 100))  # of the memory's speed


def rows(gpu: str) -> Iterator[Row]:
    """Rows of the cases that may be used.

    Examples
    --------
    >>> sorted({row.kernel.kind for row in rows("h200")})
    ['gemm']
    """
    for case in cases.read(cases.FOLDER / f"{gpu}.jsonl.gz"):
        if case.held_out or case.kernels[0].dtype.rstrip(">") != DTYPE:
            continue
        if case.family == "mm_rows":
            kernel = case.kernels[0]
            product = Kernel("gemm", kernel.shape, DTYPE, kernel.layout)
            yield Row(product, case.seconds, NOISE, 1, SOURCE)


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """The table with the new rows in place of those of an earlier run."""
    kept = [row for row in old if row.source != SOURCE]
    return sorted(
        [*kept, *new],
        key=lambda row: (
            row.kernel.kind,
            row.kernel.layout,
            row.kernel.dtype,
            row.kernel.shape,
            row.kernel.bytes,
        ),
    )


def memory_share(table: list[Row], gpu: Gpu) -> float:
    """The share of the memory's speed with which products are least off."""
    assert gpu.facts.gemm is not None
    constants, loss = asdict(gpu.facts.gemm), gemm_loss(table, gpu)
    return min(
        SHARES, key=lambda share: loss({**constants, "memory_efficiency": share})
    )


def main() -> None:
    """Writes the rows and the share."""
    name = "h200"
    gpu, table = load_gpu(name), HARDWARE / f"{name}-kernels.csv"
    both = merged(read_rows(table), rows(name))
    write_rows(table, both)
    share = memory_share(both, gpu)
    _write_share(HARDWARE / f"{name}-fitted.toml", share)
    print(f"{len(both)} rows, memory_efficiency {share}")


def _write_share(path: Path, share: float) -> None:
    text = path.read_text()
    line = (
        f"memory_efficiency = {share}  # by lab/fit/edges.py, with products of few rows"
    )
    path.write_text(
        re.sub(r"^memory_efficiency = .*$", line, text, count=1, flags=re.M)
    )


if __name__ == "__main__":
    main()
