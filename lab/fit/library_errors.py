"""`python -m lab.fit.library_errors`: how far packaged tables of libraries are off, for the page of GPUs.

Writes `sim/costs/hardware/library-errors.csv` from the set `kernels`: by GPU, family and number format the median and
the 90th percentile of the error at shapes that no table has.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from lab.sets.kernels import Part, validate_set
from prestep.sim.costs.gpu_files import HARDWARE

PATH = HARDWARE / "library-errors.csv"
HEAD = ("gpu", "family", "dtype", "rows", "median", "ninetieth")
Row = tuple[str, str, str, str, str, str]


def rows(parts: Iterable[Part]) -> list[Row]:
    """Errors of all libraries together, by GPU, family and format."""
    grouped: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    for part in parts:
        who = part.library
        grouped[who.gpu, part.family.name, who.dtype].append(np.abs(part.errors))
    return [_row(key, errors) for key, errors in sorted(grouped.items())]


def _row(key: tuple[str, str, str], errors: Sequence[np.ndarray]) -> Row:
    sizes = np.concatenate(errors)
    half, most = np.median(sizes), np.quantile(sizes, 0.9)
    return (*key, str(len(sizes)), f"{half:.4f}", f"{most:.4f}")


def main() -> None:
    """Write the file."""
    with PATH.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(rows(validate_set("kernels").parts))


if __name__ == "__main__":
    main()
