"""Eager PyTorch whose whole step is captured in one CUDA graph: the same kernels, one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.workloads.frameworks import pytorch_eager
from prestep.workloads.job import JobSpec

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What comes before the graph is replayed."""
    yield "cuda-graph: the whole step is one launch; capture and warm-up are left out"
    yield from pytorch_eager.caveats(s, model)


#: A graph has no host that reads norms, as Adafactor's does.
UPDATES = tuple(name for name in pytorch_eager.FRAMEWORK.updates if name != "adafactor")
FRAMEWORK = replace(
    pytorch_eager.FRAMEWORK, precisions=(), updates=UPDATES, caveats=caveats
)
