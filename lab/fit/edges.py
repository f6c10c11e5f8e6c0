"""`python -m lab.fit.edges`: the share of the memory's speed that an H200's products reach.

Traces of steps have no products of few rows. Cases of the family `mm_rows` of `lab/cases/aten` do; those held out are
left out. The other constants of tiles are those of the traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from lab.aten import cases
from lab.fit.kernels import gemm_loss
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.costs.tables import Row
from prestep.sim.graph.kernel import plain_product

SOURCE = "aten"
NOISE = 0.05  # cold and warm L2 differ by more, of which a step has something between
DTYPE = "bf16"  # the format of the table, whose other rows are in it
SHARES = tuple(share / 100 for share in range(50, 100))  # of the memory's speed


def rows(gpu: str) -> Iterator[Row]:
    """Rows of the cases that may be used.

    Examples
    --------
    >>> sorted({row.kernel.kind for row in rows("h200")})
    ['aten mm']
    """
    for case in cases.read(cases.FOLDER / f"{gpu}.jsonl.gz"):
        if case.held_out or case.kernels[0].dtype.rstrip(">") != DTYPE:
            continue
        if case.family == "mm_rows":
            kernel = case.kernels[0]
            product = plain_product(replace(kernel, dtype=DTYPE))
            yield Row(product, case.seconds, NOISE, 1, SOURCE)


def memory_share(table: list[Row], gpu: Gpu) -> float:
    """The share of the memory's speed with which products are least off."""
    assert gpu.facts.gemm is not None
    constants, loss = asdict(gpu.facts.gemm), gemm_loss(table, gpu)
    return min(
        SHARES, key=lambda share: loss({**constants, "memory_efficiency": share})
    )


def main() -> None:
    """Writes the share."""
    name = "h200"
    table = [*rows(name)]
    share = memory_share(table, load_gpu(name))
    _write_share(HARDWARE / f"{name}-fitted.toml", share)
    print(f"{len(table)} rows, memory_efficiency {share}")


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
