"""What libraries take of a GPU's memory for themselves, through PyTorch's allocator."""

from __future__ import annotations

#: Bytes of cuBLAS for each handle and stream (PyTorch 2.11, ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
LARGE, SMALL = 4096 * 8 * 1024, 4096 * 1024 * 2 + 16 * 1024 * 8


def workspace_of(generation: str) -> float:
    """Bytes of a workspace of cuBLAS: 32 MiB from Hopper on."""
    return float(LARGE if generation in ("hopper", "blackwell") else SMALL)
