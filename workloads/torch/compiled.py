"""Transformer blocks under ``torch.compile``: what Inductor makes of their layers, one autograd node per graph.

Under DistributedDataParallel, Dynamo cuts the graph where a gradient bucket fills
(torch/_dynamo/backends/distributed.py, DDPOptimizer), so that reduction can start before the whole block's backward has
run. Activation checkpointing within a compiled block is a rule of its one graph: what has to be computed again. Around
one it packs what the graph saves when it has run, so the whole graph runs again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import partial

from prestep.workloads.fusion.cuts import cut
from prestep.workloads.fusion.lifetimes import CALL
from prestep.workloads.operators.tensors import base
from prestep.workloads.torch import aten
from prestep.workloads.torch.activation_checkpoint import checkpoint
from prestep.workloads.torch.adapter import LowRank
from prestep.workloads.torch.again import Again
from prestep.workloads.torch.block import (
    Attention,
    Block,
    BlockParallel,
    Norm,
    Part,
    apply_norm,
)
from prestep.workloads.torch.compiled_region import Region, compile_region
from prestep.workloads.torch.gated_convolution import GatedConvolution
from prestep.workloads.torch.latent_attention import LatentAttention
from prestep.workloads.torch.modules import FeedForward, Module
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.quantized import LARGEST
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.tracing import Tracing
from prestep.workloads.torch.vision_attention import VisionAttention

#: What Dynamo traces through. Libraries' scans are under ``torch.compiler.disable``: they run as they are written,
#: between graphs.
TRACED = (
    *(Attention, LatentAttention, VisionAttention),
    *(FeedForward, GatedConvolution),
)


def compiled_block(
    t: Tape,
    block: Block,
    x: Tensor,
    bucket_cap: float | None = None,
    again: Again | None = None,
) -> Tensor:
    """Runs a block as compiled graphs: one, or several if ``bucket_cap`` (bytes, under DDP) cuts it.

    ``again``: what of it runs again in backward.
    """
    around = t.choices is not None and t.choices.checkpoint_compiled == "around"
    if _is_traced(t, block) and (again is None or again.products or not around):
        [y] = _compiled(t, block, x, bucket_cap, again)
        return y
    if again is not None:  # around what is compiled, and what is not
        rule = again if again.products else None
        return checkpoint(t, lambda y: compiled_block(t, block, y, bucket_cap), x, rule)
    outer, t.layer = t.layer, block.index
    entered, residual = _compiled(t, block, x, bucket_cap, None)
    del x
    last = block.branches[-1]
    y = _as_written(t, last.part, entered)
    y = aten.add(t, residual, apply_norm(t, last.behind, y))
    t.layer = outer
    return y


def _is_traced(t: Tape, block: Block) -> bool:
    """Whether a block is one graph.

    Experts are traced where a rank has all of them, one after the other: spread over ranks they have hooks and
    exchanges, and torchtitan compiles what is around its grouped ones. torchao leaves theirs in 16 bits.
    """
    part = block.branches[-1].part
    if not isinstance(part, MixtureOfExperts):
        return isinstance(part, TRACED)
    alone = part.group is None and block.parallel.shards == 1
    apart = part.grouped is None and part.sharded is None
    return alone and apart and not t.products_of(block.index)


def _as_written(t: Tape, part: Part, x: Tensor) -> Tensor:
    """A part that is not compiled; torchao converts linear layers alone."""
    if not isinstance(part, MixtureOfExperts):
        return part.forward(t, x)
    with t.temporarily(products="", compiles=True):
        return part.forward(t, x)


def _compiled(
    t: Tape, block: Block, x: Tensor, cap: float | None, again: Again | None
) -> list[Tensor]:
    """What is traced of a block: its output, or the last norm's and the residual where another part comes."""
    beside = [t.adapters[w] for w in block.parameters if w in t.adapters]
    parameters = [*block.parameters, *(p for each in beside for p in each.matrices)]
    outer, t.layer = t.layer, block.index
    key = (
        _layout_of(t, block),
        (x.shape, x.itemsize, x.requires_grad, t.grad_enabled or bool(t.hooked)),
        (t.products_of(block.index), cap, again),
    )
    region = t.compiled.get(key)
    if not isinstance(region, Region):
        # "DDPOptimizer backend: Found a higher order op in the graph. This is not supported."
        cut = None if cap is None or again is not None else partial(_cuts, cap)
        keeps = None if again is None else partial(_kept, again)
        layer = partial(_layer, block)
        region = compile_region(t, layer, x, parameters, cut, keeps)
        t.compiled[key] = region
    results = region.run(t, x, parameters)
    t.layer = outer
    return results


def _layer(block: Block, t: Tape, x: Tensor) -> list[Tensor]:
    if _is_traced(t, block):
        return [block.forward(t, x)]
    residual = block.through(t, x, block.branches[:-1])
    return [apply_norm(t, block.branches[-1].before, residual), residual]


# -- where a graph is cut, and what it keeps ------------------------------------------------------
def _cuts(cap: float, tracing: Tracing) -> list[int]:
    """The steps at which DDP begins another graph."""
    sizes: dict[int, float] = {}
    counted: set[Tensor] = set()
    for place, parameter in tracing.parameters_read():
        fresh = parameter.requires_grad and parameter not in counted
        counted.add(parameter)
        sizes[place] = sizes.get(place, 0.0) + parameter.stored_size * fresh
    places = list(sizes)
    groups = cut(list(sizes.values()), cap)
    return [places[group[0]] for group in groups[1:]]


def _kept(again: Again, tracing: Tracing) -> set[int]:
    """Storages of results that checkpointing keeps: of operators on its list, asked in their order."""
    drops = again.dropped()
    kept: set[int] = set()
    for graph in tracing.graphs:
        for step in graph.forward:
            kernels = tracing.kernels[step.operation]
            listed = base(tracing.operations[step.operation]) == LARGEST
            sent = [k.layout for k in kernels if k.kind == CALL]
            dropped = [drops(k) for k in kernels if k.kind != CALL]
            listed |= any(again.drops_collective(op, 0.0) for op in sent)
            if any(dropped) or (listed and again.products):
                kept.update(storage for storage, _ in step.writes)
    return kept


# -- blocks alike ---------------------------------------------------------------------------------
def _layout_of(t: Tape, block: Block) -> Hashable:
    """What a graph of a block depends on (Dynamo's guards): blocks that are alike have the same."""
    layout = t.compiled.get(block)
    if layout is None:
        layout = t.compiled[block] = _layout(t, block)
    return layout


def _layout(t: Tape, value: object) -> Hashable:
    if isinstance(value, Tensor):
        adapter = t.adapters.get(value)
        own = value.shape, value.itemsize, value.stored, value.requires_grad
        return own if adapter is None else (own, _layout(t, adapter))
    if isinstance(value, Module | Norm | BlockParallel):
        inner = vars(value).items()
        named = ((name, _layout(t, each)) for name, each in inner if name != "index")
        return type(value), tuple(named)
    if isinstance(value, list | tuple):
        return tuple(_layout(t, each) for each in value)
    if isinstance(value, dict):
        return tuple((_layout(t, k), _layout(t, v)) for k, v in value.items())
    if isinstance(value, LowRank) and is_dataclass(value):
        return tuple(_layout(t, getattr(value, each.name)) for each in fields(value))
    return value if isinstance(value, Hashable) else id(value)
