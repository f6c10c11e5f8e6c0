"""Kernels of training steps by what a library of a serving stack takes for them on the same GPU.

A library's time of a product is that of the kernel in a step, a `call` (its launch and what a stack does around it),
and `moved` bytes of memory traffic for each element that it reads (to quantize it). They were measured on GPUs of which
both are known (`python -m lab.fit.library_steps`) and hold for the same stack on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prestep.sim.costs import gemm
from prestep.sim.costs.estimators import EXTRAPOLATED, Basis, Estimator, tiles
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.facts import Stack
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel, product

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

with lazily():
    from prestep.sim.costs import library_families, library_table

#: Octaves from a measured shape within which a table reaches.
REACH = 2.0
SAME = 1e-3  # octaves within which two shapes are one
#: Least share of a call that must be its kernel's, for the call to say something of that.
CLEAR = 0.3
#: Of a library's products over a tile model (chosen with kernels of an H200's steps in view: lab/notes/costs.md).
ABOUT_TILES = 2.0, 0.12, 0.1


class ProductTable:
    """A tile model with what a library's products near a kernel say of it; far from all of them it stands alone."""

    def __init__(
        self,
        who: library_table.Library,
        stack: Stack,
        roofline: Roofline,
        tile_time: Callable[[Kernel], float],
    ) -> None:
        self.stack, self._tile_time, self._dtype = stack, tile_time, who.dtype
        shapes, seconds = rows_of_library(library_families.PRODUCTS, who)
        moved = stack.moved / roofline.bandwidth * shapes[:, 0] * shapes[:, 2]
        net = seconds - stack.call - moved
        clear = net > CLEAR * seconds
        self._shapes, self._net = shapes[clear], net[clear]
        self._points = library_families.PRODUCTS.axes(self._shapes.astype(float))
        # Kernels that are filled up ask for the same rows again and again.
        self._over: dict[int, float] = {}

    def seconds(self, kernel: Kernel) -> float:
        """Of the forward product of a shape."""
        near, to_rows = library_table.nearest(self._point(kernel), self._points)
        over = [*map(self._over_tiles, near[0].tolist())]
        about_tiles = library_table.Process(*ABOUT_TILES)
        correction = about_tiles.mean(self._points[near], np.array([over]), to_rows)
        return self._tile_time(kernel) * math.exp(correction[0])

    def octaves(self, kernel: Kernel) -> float:
        """To the measured shape that is nearest."""
        return float(library_table.nearest(self._point(kernel), self._points)[1].min())

    def _over_tiles(self, row: int) -> float:
        if row not in self._over:
            shape = tuple(map(int, self._shapes[row]))
            tiles = self._tile_time(product(shape, self._dtype))
            self._over[row] = math.log(self._net[row] / tiles)
        return self._over[row]

    def _point(self, kernel: Kernel) -> np.ndarray:
        return library_families.PRODUCTS.axes(np.array([kernel.shape], dtype=float))


def rows_of_library(
    family: library_families.Family,
    who: library_table.Library,
    folder: Path = HARDWARE,
) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and seconds of a library's packaged rows."""
    import pyarrow.parquet  # takes 0.1 s, which only GPUs with libraries need

    names = ["gpu", "dtype", "source", "kernel", "variant"]
    file = pyarrow.parquet.ParquetFile(
        folder / f"{family.name}.parquet", read_dictionary=names
    )
    table = file.read([*family.sizes, "us", *names]).combine_chunks()
    asked = np.ones(len(table), dtype=bool)
    for name in names:
        (words,) = table[name].chunks
        texts = words.dictionary.to_pylist()
        wanted = getattr(who, name)
        asked &= _numbers(words.indices) == (
            texts.index(wanted) if wanted in texts else -1
        )
    *sizes, us = (
        _numbers(table[name].chunks[0])[asked] for name in (*family.sizes, "us")
    )
    return np.column_stack(sizes), us.astype(float) * 1e-6


def _numbers(column: Any) -> np.ndarray:
    """A column without gaps by its buffer: to convert it, pyarrow would import pandas, which takes 0.2 s."""
    dtype = column.type.to_pandas_dtype()
    numbers = np.frombuffer(column.buffers()[1], dtype)
    return numbers[column.offset : column.offset + len(column)]


class LibraryProducts(Estimator):
    """A product by the table of a library on this GPU."""

    name = "library table"
    covers = "products of which a library's times on the GPU are taken"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self._tables: dict[str, ProductTable] = {}

    def answers(self, kernel: Kernel) -> bool:
        return kernel.is_product and _key(kernel) in self.gpu.facts.libraries

    def seconds(self, kernel: Kernel) -> float:
        table = self._table(kernel)
        share = table.stack.share_of(kernel.layout)
        return table.seconds(kernel) * share * tiles.odd_rows(self.gpu, kernel)

    def basis(self, kernel: Kernel) -> Basis:
        table = self._table(kernel)
        octaves = table.octaves(kernel)
        past = max(0.0, octaves - REACH)
        # The very shape, as a forward pass.
        measured = kernel.layout in ("", "nt") and octaves < SAME
        grade, reason = "measured" if measured else "fitted", EXTRAPOLATED
        source = f"library {table.stack.source}"
        return Basis(grade, reason if past > 0 else "", past, source)

    def _table(self, kernel: Kernel) -> ProductTable:
        key, gpu = _key(kernel), self.gpu
        if key not in self._tables:
            stack, dtype = gpu.facts.libraries[key], key.removeprefix("products_")
            who = library_table.Library(gpu.name, dtype, stack.source, stack.kernel)
            self._tables[key] = ProductTable(who, stack, gpu.roofline, gpu.tile_time)
        return self._tables[key]


def _key(kernel: Kernel) -> str:
    return f"products_{gemm.SAME.get(kernel.dtype, kernel.dtype)}"
