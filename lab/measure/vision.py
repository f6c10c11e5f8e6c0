"""Convolutions of models that look at pictures (torchvision): every layer of another shape, in batches of 64."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from lab.measure.case import Case
from lab.measure.layers import convolution

#: Rows of channels in and out, side of the picture, kernel, stride and groups, with the first model that has them.
LAYERS = Path(__file__).with_name("vision.csv")
BATCH = 64
#: Every so many layers are also measured so: (type, channels last, every).
OTHERWISE = (("bf16", False, 2), ("tf32", False, 3), ("fp32", False, 4))


def cases() -> Iterator[Case]:
    for at, shape in enumerate(shapes()):
        yield from convolution(BATCH, shape, "bf16", True, 3)
        for dtype, last, every in OTHERWISE:
            if at % every == 0:
                yield from convolution(BATCH, shape, dtype, last, 3)


def shapes() -> Iterator[tuple[int, ...]]:
    with LAYERS.open(newline="") as file:
        for row in csv.DictReader(file):
            _, *sizes = row.values()
            yield tuple(map(int, sizes))
