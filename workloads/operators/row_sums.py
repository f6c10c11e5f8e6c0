"""Scratch memory of PyTorch's sums over rows, which the caching allocator counts while they run.

A sum of many rows is split over several thread blocks per output; each leaves its partial sums in a
buffer in global memory (aten/src/ATen/native/cuda/Reduce.cuh: setReduceConfig, ReduceConfig::global_memory_size).
"""

from __future__ import annotations

THREADS, WARP, VECTOR = 512, 32, 4
FEWEST, MOST = 16, 256  # values per thread
# Hopper: SMs, and threads one of them holds.
MULTIPROCESSORS, RESIDENT = 132, 2048
ACCUMULATOR = 4.0  # bytes; half precision is summed in fp32


def row_sum_scratch(rows: int, columns: int) -> float:
    """Bytes of the buffer of a (rows, columns) tensor's sum over its rows; 0 when one block does an output alone."""
    vector = VECTOR if columns % VECTOR == 0 else 1
    width, height = _block(columns // vector, rows, THREADS // vector)
    if _split(rows, height) < MOST:
        return 0.0
    grid = -(-columns // (vector * width))
    target = MULTIPROCESSORS * (RESIDENT // (width * height))
    if grid > target:
        return 0.0
    values = _split(rows, height)
    blocks = max(min(-(-target // grid), -(-values // FEWEST)), -(-values // MOST))
    return ACCUMULATOR * columns * blocks * width * vector if blocks > 1 else 0.0


def _block(columns: int, rows: int, most: int) -> tuple[int, int]:
    """Threads of a block along outputs and along what is summed: powers of two, at most a warp of outputs."""
    across, down = _last_power(columns), _last_power(rows)
    width = min(across, WARP)
    height = min(down, most // width)
    return min(across, most // height), height


def _split(rows: int, height: int) -> int:
    """Values each thread adds when a block's rows share them, if that leaves each enough."""
    return -(-rows // height) if rows >= height * FEWEST or rows >= MOST else rows


def _last_power(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)
