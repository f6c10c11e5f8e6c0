"""CUDA graphs: callables are recorded as they are; a graph that a program records and replays itself is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

REFUSAL = (
    "prestep capture: this program records a CUDA graph and replays it: what a replay asks of the GPU is not recorded. "
    "Capture it with graphs switched off; `torch.cuda.make_graphed_callables` and `torch.compile` may stay"
)


def install(assumed: Counter[str]) -> None:
    """`assumed` counts the callables whose launches are recorded one by one."""

    def graphed(callables: Any, *_: Any, **__: Any) -> Any:
        assumed["CUDA graphs of callables: launches one by one"] += 1
        return callables

    torch.cuda.make_graphed_callables = graphed
    torch.cuda.graphs.make_graphed_callables = graphed
    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = module.graph = Refused


class Refused:
    """In the place of `torch.cuda.CUDAGraph` and `torch.cuda.graph`: a class, which annotations may name."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(REFUSAL)
