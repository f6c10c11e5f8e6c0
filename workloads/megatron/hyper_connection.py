"""Residual streams that are mixed around each part of a layer (hyper-connections, mHC).

A projection of a token's streams makes weights: of the streams into the part's input, of its output into each stream,
and of streams into streams, made doubly stochastic by Sinkhorn's iterations. Source: megatron/core/transformer/
hyper_connection.py and fusions/fused_mhc_kernels.py (branch dev, d48bd6be). Parameters, which Megatron keeps in fp32,
are counted in 16 bits here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.workloads.megatron.elementwise import pass_over, unsaved
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.models import compressed
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import (
    detached,
    discarded,
    replayed,
)
from prestep.workloads.torch.functional import launched
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

Moved = tuple[
    tuple[float, float], ...
]  # of each kernel: in sizes of all streams, and of one


@dataclass(frozen=True)
class Kernels:
    """What the kernels of a connection move, besides those over mixing weights alone, whose number is `small`."""

    mapped: Moved
    mapped_back: Moved
    joined: Moved
    joined_back: Moved
    added: Moved
    added_back: Moved
    small: tuple[int, int]


# Fused (use_fused_mhc): projection and norm in one pass, its parts' sum, Sinkhorn's iterations and three casts; back
# those, the gradients of scores, and the scales' in two steps.
FUSED = Kernels(
    mapped=((1, 0),),
    mapped_back=((2, 0),),
    joined=((1, 1),),
    joined_back=((2, 1),),
    added=((2, 1),),
    added_back=((2, 1), (2, 1)),
    small=(5, 7),
)
# Compiled by torch: streams in fp32 for the projection, then for its norm; backward both gradients and their sum in
# fp32, and a cast. Streams are mixed by a batched product, before what the part made is added.
NATIVE = Kernels(
    mapped=((3, 0), (2, 0), (2, 0)),
    mapped_back=((2, 0), (4, 0), (6, 0), (3, 0), (2, 0)),
    joined=((1, 1),),
    joined_back=((1, 1), (1, 1)),
    added=((2, 0), (2, 1)),
    added_back=((2, 0), (2, 0), (1, 1), (1, 1)),
    small=(5, 7),
)
# Consumers of a layer's input: the mixing weights, the part's input, and the streams behind it. One kernel adds up the
# gradients of all three (BroadcastTensorFused).
CONSUMERS = 3


class HyperConnection(Module):
    """What is around one part of a layer."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.weights = m, compressed.mixing(m.streams)
        self.kernels = FUSED if s.options.use_fused_mhc else NATIVE
        self.again = "mhc" in s.options.recompute_modules
        self.mapping = self.add(t, self.weights, m.residual, name="mapping_proj")
        self.scales = self.add(t, 3, name="mhc_alpha")
        self.offsets = self.add(t, self.weights, name="mhc_bias")

    def into(self, t: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The part's input; the streams and the mixing weights, which `out` takes."""
        mapped, joined, kept = _thrice(t, x)
        h = discarded(t, lambda given: self._mapped(t, given), mapped, self.again)
        y = discarded(t, lambda given: self._joined(t, given, h), joined, self.again)
        return y, kept, h

    def out(self, t: Tape, y: Tensor, x: Tensor, h: Tensor) -> Tensor:
        """Streams mixed, and the part's output in each of them."""
        # A product's gradients want both factors.
        saved = [detached(each) for each in (x, y, h)]
        over, moves = partial(self._pass, t, x.elements), self.kernels
        both = partial(over, moves.added), partial(over, moves.added_back)
        made = launched(t, [x, y, h], x.shape, *both, saved)
        if not self.again:
            return made
        # All layers of a stage are one block (mhc_recompute_layer_num), whose streams are made again.
        return replayed(t, made, partial(over, moves.added))

    def _mapped(self, t: Tape, x: Tensor) -> Tensor:
        """Mixing weights of every token."""
        moves, shape = self.kernels, (*x.shape[:-1], self.weights)
        n, count = x.elements, x.elements // x.shape[-1] * self.weights

        def ahead() -> None:
            t.cpu("fused")
            self._pass(t, n, moves.mapped)
            self._over_weights(t, count, moves.small[0])

        def back() -> None:
            t.cpu("fused_backward")
            self._over_weights(t, count, moves.small[1])
            self._pass(t, n, moves.mapped_back)

        # What the projection made, before and after its activations, in fp32.
        saved = [detached(x), t.empty(shape, 4), t.empty(shape, 4)]
        trained = [self.mapping, self.scales, self.offsets]
        return launched(t, [x, *trained], shape, ahead, back, saved)

    def _joined(self, t: Tape, x: Tensor, h: Tensor) -> Tensor:
        """One stream of all, by their weights."""
        moves, shape = self.kernels, (*x.shape[:-1], self.m.hidden)
        over = partial(self._pass, t, x.elements)
        both = partial(over, moves.joined), partial(over, moves.joined_back)
        return launched(t, [x, h], shape, *both, [detached(x), detached(h)])

    def _pass(self, t: Tape, elements: int, moves: Moved) -> None:
        """Kernels over so many elements of all streams, in 16 bits."""
        size = 2.0 * elements
        for streams, one in moves:
            pass_over(t, elements, size * (streams + one / self.m.streams))

    def _over_weights(self, t: Tape, count: int, kernels: int) -> None:
        """Kernels that read and write so many mixing weights in fp32."""
        for _ in range(kernels):
            pass_over(t, count, 8.0 * count)


def _thrice(t: Tape, x: Tensor) -> list[Tensor]:
    """One value for each of its consumers, whose gradients one kernel adds up."""
    arrived: list[Tensor] = []

    def backward(g: Tensor) -> list[Tensor | None]:
        arrived.append(g)
        if len(arrived) < CONSUMERS:
            return [None]
        arrived.clear()
        pass_over(t, g.elements, (CONSUMERS + 1) * g.size)
        return [t.empty(x.shape, x.itemsize)]

    names = [Tensor(x.storage, x.shape, x.itemsize) for _ in range(CONSUMERS)]
    return [t.apply(name, [x], backward) for name in names]


def expanded(t: Tape, x: Tensor, streams: int) -> Tensor:
    """A copy of the embedding in every stream; backward their sum (input_expand)."""
    if streams == 1:
        return x
    shape, n = (*x.shape[:-1], x.shape[-1] * streams), x.elements
    moved = partial(pass_over, t, n * streams, x.size * (streams + 1))
    return launched(t, [unsaved(x)], shape, moved, moved)


# Bytes that the contraction moves, in sizes of all streams in 16 bits: cast to fp32 with its norm, the product with a
# weight for each stream, the weighted sum; backward the sum's gradients, the product's two, the norm's, and a cast.
CONTRACTED, CONTRACTED_BACK = (3.0, 2.0, 2.0), (4.0, 2.0, 2.0, 6.0, 3.0)


class Contraction(Module):
    """One stream of all by learned weights, in fp32 (learned_output_contract)."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.m = m
        if m.streams > 1:
            self.add(t, m.streams, m.residual, name="hc_head_fn")
            self.add(t, m.streams, name="hc_head_base")
            self.add(t, 1, name="hc_head_scale")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        if self.m.streams == 1:
            return x
        n, size = x.elements, x.size

        def passes(moves: tuple[float, ...]) -> None:
            for moved in moves:
                pass_over(t, n, moved * size)

        both = partial(passes, CONTRACTED), partial(passes, CONTRACTED_BACK)
        saved, shape = [detached(x), t.empty(x.shape, 4)], x.shape[:-1]
        inputs = [x, *self.parameters]
        return launched(t, inputs, (*shape, self.m.hidden), *both, saved)
