"""Transformer blocks under ``torch.compile``: fused kernels, one autograd node per compiled graph.

Inductor's kernels, their order and what is saved were read off Kineto traces of PyTorch 2.11 on H200 (8b
on one GPU and under FSDP: one graph per block; 1b under DDP: four). Under DistributedDataParallel, Dynamo
cuts the graph where a gradient bucket fills (torch/_dynamo/backends/distributed.py, DDPOptimizer), so that
reduction can start before the whole block's backward has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prestep.workloads.torch import aten
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import (
    DOWN,
    OUTPUT,
    UP,
    adapter_matrices,
    parameters_of,
    uses,
)
from prestep.workloads.torch.compiled_graph import graph_of
from prestep.workloads.torch.compiled_hybrid import compiled_layer, experts_between
from prestep.workloads.torch.modules import FeedForward
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.scan_layers import HybridBlock
from prestep.workloads.torch.tape import Tape, Tensor

# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: the cut nearest the output comes early.
FIRST_BUCKET = 2.0**20


def compiled_block(
    t: Tape, block: Block, x: Tensor, bucket_cap: float | None = None
) -> Tensor:
    """Runs a block as compiled graphs: one, or several if ``bucket_cap`` (bytes, under DDP) cuts it.

    Experts run as they are written, between compiled graphs: Dynamo breaks its graph at their hooks and exchanges, and
    torchtitan compiles what is around them.
    """
    if isinstance(block, HybridBlock):
        return compiled_layer(t, block, x)
    outer, t.layer = t.layer, block.index
    values = {"x": x}
    del x
    graph = graph_of(block)
    for units, later in _graphs(t, block, bucket_cap):
        graph(t, block, units, later | {"y"}).forward(values)
        values = {
            name: value
            for name, value in values.items()
            if name in later or name == "y"
        }
    if isinstance(block.ffn, MixtureOfExperts):
        routed = experts_between(t, block.ffn, values.pop("n2"))
        values["y"] = aten.add(t, values.pop("x2"), routed)
    t.layer = outer
    return values["y"]


def _trained(t: Tape, block: Block, unit: int) -> float:
    """Bytes of a unit's parameters that DDP puts into buckets."""
    own = parameters_of(block, [unit]) + adapter_matrices(t, block, [unit])
    return sum(p.stored_size for p in own if p.requires_grad)


def _graphs(
    t: Tape, block: Block, bucket_cap: float | None
) -> Iterator[tuple[list[int], set[str]]]:
    """The units of every graph of a block, with the values that later graphs, or experts, use."""
    dense = isinstance(block.ffn, FeedForward)
    gated = isinstance(block.ffn, FeedForward) and block.ffn.gated
    last = DOWN if dense else OUTPUT
    units = [u for u in range(last + 1) if u != UP or gated]
    sizes = [_trained(t, block, u) for u in units]
    graphs = [[units[i] for i in group] for group in cut(sizes, bucket_cap)]
    experts = set() if dense else {"n2", "x2"}
    for i, graph in enumerate(graphs):
        after = [u for later in graphs[i + 1 :] for u in later]
        used = {name for u in after for name in uses(u, gated)}
        yield graph, used | experts


def cut(sizes: Sequence[float], cap: float | None) -> list[list[int]]:
    """Consecutive units grouped from the back: a group closes once its parameters reach ``cap`` bytes.

    >>> cut([1.0, 30.0, 30.0], 25.0)
    [[0], [1], [2]]
    """
    groups: list[list[int]] = [[]]
    size = 0.0
    for unit in reversed(range(len(sizes))):
        if cap is not None and size >= (
            min(FIRST_BUCKET, cap) if len(groups) == 1 else cap
        ):
            groups.insert(0, [])
            size = 0.0
        groups[0].insert(0, unit)
        size += sizes[unit]
    return groups
