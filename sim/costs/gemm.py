"""Matrix multiplication as the GPU runs it: output tiles, one per SM at a time, in waves.

time = floor + waves * (tile_start + tile_m * tile_n * (epilogue + k * 2 / (sm_peak * efficiency)))
waves = ceil(tiles / SMs),
less `tail` of what the last wave leaves idle

minimised over the tile shapes that cuBLAS uses on Hopper and over splitting k, and never below what memory allows.
Each choice grows with m, n and k, so their minimum does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prestep.sim.graph.kernel import GROUPS, Kernel

# (rows, columns) of the CTA tiles seen in the kernel names of the H200 traces (nvjet_sm90_tst_256x128_...).
TILES = (
    (256, 128),
    (320, 128),
    (192, 192),
    (192, 128),
    (128, 160),
    (128, 128),
    (128, 64),
    (64, 64),
    (64, 32),
)

# Ways to split k: a weight's gradient of a million rows needs many.
SPLITS = tuple(2**n for n in range(8))
UNSPLIT = [(1, 0.0)]


@dataclass(frozen=True)
class TileModel:
    """Constants of the wave model (fitted; see the GPU's toml).

    `efficiency` is the share of an SM's peak reached by the 256 x 128 tile; smaller tiles reach
    `efficiency * (area / 32768) ** exponent` of it. `epilogue` is s for an output element that a tile writes, `tail`
    the share of a last, half-empty wave that does not count (fewer tiles run faster: clock and L2). Times in s.
    """

    floor: float
    tile_start: float
    efficiency: float
    exponent: float
    memory_efficiency: float
    epilogue: float = 0.0
    tail: float = 0.0

    def time(
        self,
        shape: tuple[int, int, int],
        sms: int,
        peak: float,
        bandwidth: float,
        size: float,
        count: int = 1,
    ) -> float:
        """Seconds of `count` (m, n, k) products side by side, with `peak` flop/s and `size` bytes in all."""
        m, n, k = shape
        # Libraries split the sum of one product alone: measured in batches of 2 to 64, sums of up to 262,144.
        reductions = _reductions(m * n / bandwidth) if count == 1 else UNSPLIT
        best = math.inf
        for rows, columns in TILES:
            area = rows * columns
            rate = self._rate(peak / sms, area)
            tiles = count * _fewest_tiles(m, n, rows, columns)
            for split, reduction in reductions:
                depth = k / split
                each = self.tile_start + area * (self.epilogue + 2.0 * depth / rate)
                waves = self._waves(tiles * split / sms)
                best = min(best, waves * each + reduction)
        return self.floor + max(best, size / (bandwidth * self.memory_efficiency))

    def _rate(self, peak: float, area: int) -> float:
        """flop/s of an SM of so many at peak on a tile of `area` elements."""
        reached: float = min(1.0, area / 32768) ** self.exponent
        return peak * self.efficiency * reached

    def _waves(self, full: float) -> float:
        """Waves that count, of `full` ones and a last one that is in part empty."""
        return (1.0 - self.tail) * math.ceil(full) + self.tail * max(1.0, full)


def _reductions(pass_time: float) -> list[tuple[int, float]]:
    """Every split of k with the seconds in which its partial sums are written and read back in fp32."""
    return [
        (split, 0.0 if split == 1 else 2.0e-6 + 8.0 * split * pass_time)
        for split in SPLITS
    ]


def _fewest_tiles(m: int, n: int, rows: int, columns: int) -> int:
    """Tiles that cover m x n, upright or lying: fewer are never slower."""
    upright = math.ceil(m / rows) * math.ceil(n / columns)
    lying = math.ceil(m / columns) * math.ceil(n / rows)
    return min(upright, lying)


# Guess, for a GPU whose file has no [gemm]; also where fitting one starts.
TYPICAL = TileModel(
    floor=2e-6, tile_start=1.5e-6, efficiency=0.8, exponent=0.2, memory_efficiency=0.85
)


# Formats that run on the same units at the same speed as another.
SAME = {"fp16": "bf16", "mxfp8": "fp8"}
# The format whose factor of sustained load counts.
SUSTAINED = SAME | {"fp8_block": "fp8", "nvfp4": "fp8"}


def of_dtype(tiles: Mapping[str, TileModel], dtype: str) -> TileModel | None:
    """The model fitted for a format, or for one that runs alike."""
    return tiles.get(dtype) or tiles.get(SAME.get(dtype, dtype))


# Rows of a tile of grouped products, and how deep a part of its sum is (CUTLASS on Hopper: 128 x 256 x 64).
ROWS, DEPTH = 128, 64


def is_tiled(kernel: Kernel) -> bool:
    """Whether a kernel is priced by its tiles where nobody measured it: products, also of groups."""
    return kernel.is_product or kernel.kind in GROUPS


def products(kernel: Kernel) -> tuple[int, tuple[int, int, int]]:
    """How many products of which (m, n, k) a kernel is, side by side; of groups, whose rows are those of all experts.

    Examples
    --------
    >>> products(Kernel("aten _grouped_mm", (8, 4096, 512, 256), layout="nt"))
    (8, (512, 512, 256))
    """
    count, m, n, k = (1, *kernel.shape)[-4:]
    if kernel.kind not in GROUPS:
        return count, (m, n, k)
    if kernel.layout.startswith("t"):  # weights' gradients sum over the tokens
        return count, (m, n, max(1, k // count))
    return count, (max(1, m // count), n, k)


def in_whole_tiles(kernel: Kernel) -> Kernel:
    """A product of groups with as many rows as its tiles cover where groups end anywhere: half a tile more for each.

    Routers give experts any number of rows. Of weights' gradients, which sum over these, parts of the sum end so.

    Examples
    --------
    >>> in_whole_tiles(Kernel("aten _grouped_mm", (8, 4096, 512, 256), layout="nt")).shape
    (8, 4608, 512, 256)
    """
    count, m, n, k = kernel.shape
    summed = kernel.layout.startswith("t")
    rows, half = (k, DEPTH // 2) if summed else (m, ROWS // 2)
    rows += count * min(half, rows // count) if count > 1 else 0
    return replace(kernel, shape=(count, m, n, rows) if summed else (count, rows, n, k))


def unaligned(shape: tuple[int, int, int], layout: str, dtype: str) -> bool:
    """Whether a leading dimension of an operand is no multiple of 16 bytes."""
    m, n, k = shape
    step = {"fp8": 16, "fp8_block": 16, "mxfp8": 16, "nvfp4": 32}.get(dtype, 8)
    return any(size % step for size in ((m, n) if layout[:2] == "tn" else (n, k)))
