"""PyTorch's fused AdamW: chunks of 65,536 elements, at most 320 chunks and 36 tensors in one launch.

Source: torch/aten ForeachFunctors.cuh / MultiTensorApply.cuh (kChunkSize, depth_to_max_blocks, depth_to_max_tensors);
the launches in the traces have exactly these grids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prestep.sim.costs.estimators import Basis, Estimator
from prestep.sim.graph.kernel import PREFIX, Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

#: PyTorch's operation over four lists of tensors, and the types whose launches were measured.
ADAMW, LISTS, HALF = f"{PREFIX}_fused_adamw_", "4", ("bf16", "fp16")
SPARSE = f"{LISTS}_embedding"
BYTES = 14.0  # of an element in 16 bits: seven passes
CHUNK = 65536  # elements
BLOCKS_PER_LAUNCH = 320
TENSORS_PER_LAUNCH = 36


@dataclass(frozen=True)
class Adamw:
    """Time of one launch by the chunks in it: `launch[i]` = (chunks, s), rising; `sparse` scales untouched embeddings.

    Rows of an embedding that no token touched have zero gradient and moments; dividing zeros takes the slow path.
    """

    launch: tuple[tuple[float, float], ...]
    sparse: float

    def launches(self, elements: int, tensors: int) -> int:
        """CUDA kernels of one optimizer step over `tensors` tensors of `elements` elements in all."""
        return max(
            math.ceil(elements / CHUNK / BLOCKS_PER_LAUNCH),
            math.ceil(tensors / TENSORS_PER_LAUNCH),
        )

    def time(self, elements: int, tensors: int, layout: str, gap: float) -> float:
        """Seconds from the first launch's start to the last one's end."""
        count = self.launches(elements, tensors)
        full = min(count - 1, int(elements / CHUNK // BLOCKS_PER_LAUNCH))
        rest = elements / CHUNK - full * BLOCKS_PER_LAUNCH
        each = rest / (count - full)
        scale = self.sparse if layout == "embedding" else 1.0
        times = full * self._launch(BLOCKS_PER_LAUNCH) + (count - full) * self._launch(
            each
        )
        return times * scale + (count - 1) * gap

    def _launch(self, chunks: float) -> float:
        (low, start), *others = self.launch
        if chunks <= low:
            return start
        for high, end in others:
            if chunks <= high:
                return start + (end - start) * (chunks - low) / (high - low)
            low, start = high, end
        return start * chunks / low


class FusedAdamw(Estimator):
    """The fused AdamW by its launches, where the GPU's file has their times."""

    name = "launches of AdamW"
    covers = "AdamW on a GPU whose launches were measured, and over embeddings on one that is like it"

    def answers(self, kernel: Kernel) -> bool:
        if kernel.kind != ADAMW or kernel.dtype not in HALF:
            return False
        if self.gpu.facts.adamw is not None:
            return kernel.layout.startswith(LISTS)
        return kernel.layout == SPARSE and self._launches is not None

    def seconds(self, kernel: Kernel) -> float:
        launches, (tensors, _) = self._launches, kernel.shape
        assert launches is not None
        if self.gpu.facts.adamw is None:
            return launches.sparse * self.gpu.lent(replace(kernel, layout=LISTS))
        # Moments may be wider than parameters: what moves counts.
        elements, layout = round(kernel.bytes / BYTES), kernel.layout[len(LISTS) + 1 :]
        return launches.time(elements, tensors, layout, self.gpu.gap)

    @property
    def _launches(self) -> Adamw | None:
        """Those of this GPU, else of the nearest that it is like."""
        gpu: Gpu | None = self.gpu
        while gpu is not None and gpu.facts.adamw is None:
            gpu = gpu.like
        return None if gpu is None else gpu.facts.adamw

    def basis(self, kernel: Kernel) -> Basis:
        return Basis("fitted")
