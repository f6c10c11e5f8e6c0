"""Transformer blocks under ``torch.compile``: fused kernels, one autograd node per compiled graph.

Inductor's kernels, their order and what is saved were read off Kineto traces of PyTorch 2.11 on H200 (8b
on one GPU and under FSDP: one graph per block; 1b under DDP: four). Under DistributedDataParallel, Dynamo
cuts the graph where a gradient bucket fills (torch/_dynamo/backends/distributed.py, DDPOptimizer), so that
reduction can start before the whole block's backward has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from workloads.torch import functional as F
from workloads.torch.block import Block
from workloads.torch.block_units import (
    DOWN,
    NAMES,
    OUTPUT,
    UP,
    unit_biases,
    unit_parameters,
    uses,
)
from workloads.torch.compiled_latent import LatentUnits
from workloads.torch.compiled_units import Late, Units
from workloads.torch.latent_attention import LatentAttention
from workloads.torch.modules import FeedForward
from workloads.torch.moe import MixtureOfExperts
from workloads.torch.tape import Tape, Tensor

# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: the cut nearest the output comes early.
FIRST_BUCKET = 2.0**20


def compiled_block(
    t: Tape, block: Block, x: Tensor, bucket_cap: float | None = None
) -> Tensor:
    """Runs a block as compiled graphs: one, or several if ``bucket_cap`` (bytes, under DDP) cuts it.

    Experts run as they are written, between compiled graphs: Dynamo breaks its graph at their hooks and exchanges, and
    torchtitan compiles what is around them.
    """
    outer, t.layer = t.layer, block.index
    values = {"x": x}
    del x
    graph = LatentGraph if isinstance(block.attention, LatentAttention) else Graph
    for units, later in _graphs(block, bucket_cap):
        graph(t, block, units, later | {"y"}).forward(values)
        values = {
            name: value
            for name, value in values.items()
            if name in later or name == "y"
        }
    if isinstance(block.ffn, MixtureOfExperts):
        products, t.products = t.products, ""  # torchao converts linear layers alone
        t.compiles = True
        routed = block.ffn.forward(t, values.pop("n2"))
        t.products, t.compiles = products, False
        values["y"] = F.add(t, values.pop("x2"), routed)
    t.layer = outer
    return values["y"]


def _graphs(
    block: Block, bucket_cap: float | None
) -> Iterator[tuple[list[int], set[str]]]:
    """The units of every graph of a block, with the values that later graphs, or experts, use."""
    dense = isinstance(block.ffn, FeedForward)
    gated = isinstance(block.ffn, FeedForward) and block.ffn.gated
    last = DOWN if dense else OUTPUT
    units = [u for u in range(last + 1) if u != UP or gated]
    sizes = [sum(p.size for p in _parameters(block, [u])) for u in units]
    graphs = [[units[i] for i in group] for group in cut(sizes, bucket_cap)]
    experts = set() if dense else {"n2", "x2"}
    for i, graph in enumerate(graphs):
        after = [u for later in graphs[i + 1 :] for u in later]
        used = {name for u in after for name in uses(u, gated)}
        yield graph, used | experts


def _parameters(block: Block, units: Sequence[int]) -> list[Tensor]:
    """Of some units, biases behind all others."""
    biases = [b for u in units for b in unit_biases(block, u)]
    return [p for u in units for p in unit_parameters(block, u)] + biases


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


def _alias(x: Tensor) -> Tensor:
    """The same memory without history."""
    return Tensor(x.storage, x.shape, x.itemsize)


class Compiled(Units):
    """Some consecutive units of a block, compiled as one: one autograd node."""

    # -- autograd -------------------------------------------------------------------------------
    def forward(self, values: dict[str, Tensor]) -> None:
        """Takes its inputs from ``values`` and puts its outputs there."""
        t = self.t
        local = {name: _alias(values[name]) for name in self.inputs}
        self._begin(next(iter(local.values())).shape[:2])
        t.cpu("compiled_forward")
        with t.launching_by("compiled_launch"):
            for unit in self.units:
                getattr(self, f"forward_{NAMES[unit]}")(local)
        if DOWN not in self.units:
            t.saves()
        parameters = _parameters(self.block, self.units)
        first, *others = self.outputs
        main = t.apply(
            _alias(local[first]),
            [*(values[name] for name in self.inputs), *parameters],
            self.backward,
        )
        values[first] = main
        for name in others:  # a further output hands its gradient over and adds nothing to the first one's
            values[name] = t.apply(
                _alias(local[name]), [main], partial(self._receive, name)
            )

    def _receive(self, name: str, g: Tensor) -> list[Tensor | None]:
        self.gradients[name] = g
        return [None]

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs and then of all parameters, handed over together at the end."""
        self.gradients[self.outputs[0]] = g
        del g
        self.t.cpu("compiled_backward")
        weights: dict[int, list[Tensor]] = {}
        late: Late = []
        with self.t.launching_by("compiled_launch"):
            for unit in reversed(self.units):
                weights[unit] = []
                getattr(self, f"backward_{NAMES[unit]}")(
                    self.gradients, weights[unit], late
                )
            for launch in late:
                launch()
        ordered = [w for u in self.units for w in weights[u]]
        biases = [b for u in self.units for b in unit_biases(self.block, u)]
        ordered += [self.bias_gradients[b] for b in biases]
        self.saved.clear()
        return [*(self.gradients.get(name) for name in self.inputs), *ordered]


class Graph(Compiled):
    """Of a block with queries, keys and values from projections of their own."""


class LatentGraph(LatentUnits, Compiled):
    """Of a block with latent attention."""
