"""PyTorch's fused AdamW: chunks of 65,536 elements, at most 320 chunks and 36 tensors in one launch.

Source: torch/aten ForeachFunctors.cuh / MultiTensorApply.cuh (kChunkSize, depth_to_max_blocks, depth_to_max_tensors);
the launches in the traces have exactly these grids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prestep.sim.costs.estimators import Basis, Estimator
from prestep.sim.graph.kernel import Kernel

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

    name, covers = "launches of AdamW", "AdamW on a GPU whose launches were measured"

    def answers(self, kernel: Kernel) -> bool:
        return kernel.kind == "adamw" and self.gpu.facts.adamw is not None

    def seconds(self, kernel: Kernel) -> float:
        launches, (elements, tensors) = self.gpu.facts.adamw, kernel.shape[:2]
        assert launches is not None
        return launches.time(elements, tensors, kernel.layout, self.gpu.gap)

    def basis(self, kernel: Kernel) -> Basis:
        return Basis("fitted")
