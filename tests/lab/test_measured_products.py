"""Products of experts and in FP8 that were measured on an H200, against what its tables and its power limit say."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from statistics import median

from lab.aten.cases import FOLDER
from prestep.sim.costs import load_gpu
from prestep.sim.graph.kernel import PREFIX, Kernel
from tests.sample import together

H200 = load_gpu("h200")


def judged(kind: str, *conditions: str) -> Iterator[tuple[Kernel, float]]:
    """Kernels with their seconds, of rows that no table has."""
    with (FOLDER / "h200.products.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["kind"], row["split"]) != (kind, "judge"):
                continue
            if row["condition"] in conditions:
                shape = tuple(map(int, row["shape"].split("x")))
                own = (
                    row["dtype"],
                    row["layout"],
                    float(row["bytes"]),
                    float(row["flops"]),
                )
                yield Kernel(PREFIX + kind, shape, *own), float(row["us"]) * 1e-6


@together(("kind", "rows"), [("mm", "step"), ("_grouped_mm", "uneven step")])
def test_power_and_nothing_else_slows_products_in_a_step(kind: str, rows: str) -> None:
    """Of experts as of single matrices: on the median between the highest clock and that of the power limit.

    A factor of load on top of what power does would put predictions beyond what was measured.
    """
    assert H200.power is not None
    over = [time / H200.in_step(kernel) for kernel, time in judged(kind, rows)]
    assert len(over) > 15 and 1.0 <= median(over) <= H200.power.slowest
    assert all(H200.beyond_limit(kernel) for kernel, _ in judged(kind, rows))


@together(
    ("kind", "conditions", "rows", "within"),
    [
        ("_grouped_mm", ("burst",), 10, 0.08),
        ("_scaled_mm", ("burst tensor", "burst tensor exact"), 11, 0.04),
        ("_scaled_mm", ("burst rows",), 9, 0.04),
        ("_scaled_mm", ("burst blocks",), 9, 0.04),
    ],
)
def test_shapes_that_were_held_out(
    kind: str, conditions: tuple[str, ...], rows: int, within: float
) -> None:
    """Mean error of bursts of shapes whose rows are not in the tables."""
    errors = [
        abs(H200.duration(kernel) / time - 1.0)
        for kernel, time in judged(kind, *conditions)
    ]
    assert len(errors) >= rows and sum(errors) / len(errors) < within


def test_groups_end_anywhere_in_a_tile() -> None:
    """Groups of unequal rows, no row of which is in a table: half a tile more for each, and nothing fitted."""
    over = [
        H200.in_step(kernel) / time
        for kernel, time in judged("_grouped_mm", "uneven burst")
    ]
    assert len(over) == 24 and 0.97 < median(over) < 1.03
    assert sum(abs(each - 1.0) for each in over) / len(over) < 0.08
