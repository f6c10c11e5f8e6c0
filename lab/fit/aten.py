"""`python -m lab.fit.aten`: tables of ATen operations from the measured cases of a GPU.

Rows held out are left out; `lab.aten.held_out` compares them with what the tables say.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from lab.aten import cases
from lab.aten.cases import Case
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.graph.kernel import PREFIX, Kernel

FIELDS = ("kind", "layout", "dtype", "shape", "bytes", "flops", "us", "launches")
#: Kernels of other libraries, measured in the same way: the columns above, and which part a row is of.
LIGER = Path(__file__).parents[1] / "cases" / "liger"


def table(measured: Iterable[Case]) -> list[tuple[str, ...]]:
    """Rows of the cases that may be used, one for each kernel: the mean of its seconds in log."""
    by_kernel: dict[Kernel, list[Case]] = {}
    for case in measured:
        if len(case.kernels) == 1 and not case.held_out:
            by_kernel.setdefault(case.kernels[0], []).append(case)
    ordered = sorted(by_kernel, key=_order)
    return [_row(kernel, by_kernel[kernel]) for kernel in ordered]


def _order(kernel: Kernel) -> tuple[str, str, str, tuple[int, ...], float]:
    return kernel.kind, kernel.layout, kernel.dtype, kernel.shape, kernel.bytes


def _row(kernel: Kernel, mine: list[Case]) -> tuple[str, ...]:
    seconds = math.exp(sum(math.log(case.seconds) for case in mine) / len(mine))
    launches = round(sum(case.launches for case in mine) / len(mine))
    return (
        kernel.kind.removeprefix(PREFIX),
        kernel.layout,
        kernel.dtype,
        "x".join(map(str, kernel.shape)),
        f"{kernel.bytes:.0f}",
        f"{kernel.flops:.6g}" if kernel.flops else "",
        f"{seconds * 1e6:.4g}",
        str(launches),
    )


def others(gpu: str) -> Iterator[tuple[str, ...]]:
    """Rows of traces of steps, of later products, and of other libraries' kernels that may be used."""
    own = (
        cases.FOLDER / f"{gpu}.{part}.csv"
        for part in ("steps", "products", "attention")
    )
    for path in (*own, LIGER / f"{gpu}-kernels.csv"):
        if path.exists():
            with path.open(newline="") as file:
                for fields in csv.DictReader(file):
                    if fields.get("split", "fit") == "fit":
                        yield tuple(fields[name] for name in FIELDS)


def write(gpu: str, folder: Path = HARDWARE) -> Path:
    """The table of a GPU, from the cases measured on it."""
    path = folder / f"{gpu}-aten.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(table(cases.measured(gpu)))
        writer.writerows(others(gpu))
    return path


def main() -> None:
    """Write the tables of the named GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", nargs="*", default=["h100", "h200"])
    for gpu in parser.parse_args().gpu:
        print(write(gpu))


if __name__ == "__main__":
    main()
