"""Keys that stand for groups of tokens: pooled by learned weights, normed and rotated (DeepSeek-V4's compressor).

Source: megatron/core/transformer/experimental_attention_variant/csa.py (branch dev, d48bd6be): projections stay in 16
bits, what is between them and the norm runs operator by operator (Compressor._forward_sbhd). The kernel that fuses it
takes packed samples only.
"""

from __future__ import annotations

from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.shard import Shard, unquantized, whole
from prestep.workloads.models.compressed import overlap
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.functional import norm
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes an element of a projection's output that each operator moves: the places' bias added in fp32; a softmax over a
# group, its cast, the product with values, their sum. Backward the product's two gradients, a cast, the softmax's, the
# bias's sum over groups, and a cast.
POOLED = (6.0, 8.0, 6.0, 6.0, 2.0)
POOLED_BACK = (4.0, 4.0, 6.0, 12.0, 4.0, 6.0)
# Where groups overlap both are put together first, values in 16 bits and scores in 32: a fill, two copies of halves;
# backward of each copy its gradient is copied, what it wrote filled, its source's gradient filled and copied; both are
# added.
OVERLAPPED = tuple(size * one for size in (2.0, 4.0) for one in (1.0, 1.0, 1.0))
OVERLAPPED_BACK = tuple(
    size * one
    for size in (2.0, 4.0)
    for one in (2.0, 0.5, 1.0, 1.0, 2.0, 0.5, 1.0, 1.0, 3.0)
)
# What backward needs of an element: the softmax in fp32 and in 16 bits, and the values.
SAVED = 8
# A rotation by a Hadamard matrix reads and writes what it rotates (fast_hadamard_transform).
HADAMARD = 2.0


class Compressor(Module):
    """A key of ``width`` elements for every ``ratio`` tokens; ``mixed``: rotated by a Hadamard matrix besides."""

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        s: Shard,
        ratio: int,
        width: int,
        mixed: bool = False,
    ) -> None:
        super().__init__()
        self.m, self.s = m, unquantized(whole(s))
        self.ratio, self.width, self.mixed = ratio, width, mixed
        columns = overlap(ratio) * width
        self.values = self.add(t, columns, m.hidden, name="linear_wkv")
        self.gate = self.add(t, columns, m.hidden, name="linear_wgate")
        self.places = self.add(t, ratio, columns, name="ape")
        self.norm = self.add(t, width, name="compressor_norm")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        values = column_linear(t, x, self.values, self.s)
        scores = column_linear(t, x, self.gate, self.s)
        keys = norm(t, "rms", self._pooled(t, values, scores), [self.norm])
        turned = 2.0 * keys.size * self.m.rope_head_dim / self.width
        keys = fused(t, [unsaved(keys)], keys.shape, turned, turned)
        return hadamard(t, keys) if self.mixed else keys

    def _pooled(self, t: Tape, values: Tensor, scores: Tensor) -> Tensor:
        """Of each group the sum of its values, by a softmax of its scores; tokens of no whole group are left."""
        twice = overlap(self.ratio) > 1
        ahead = (*POOLED[:1], *(OVERLAPPED if twice else ()), *POOLED[1:])
        back = (
            *POOLED_BACK[:4],
            *(OVERLAPPED_BACK if twice else ()),
            *POOLED_BACK[4:],
        )
        shape = (values.shape[0] // self.ratio, *values.shape[1:-1], self.width)
        inputs, sizes = [values, scores, self.places], (values.shape, scores.shape)
        saved = t.empty((values.elements,), SAVED)
        _operators(t, values.elements, ahead)

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, saved)
            _operators(t, values.elements, back, "elementwise_backward")
            return [*(t.empty(size) for size in sizes), t.empty(self.places.shape)]

        return t.apply(t.empty(shape, values.itemsize), inputs, backward)


def hadamard(t: Tape, x: Tensor) -> Tensor:
    """Rotated by a Hadamard matrix, backward too (rotate_activation)."""
    moved = HADAMARD * x.size
    return fused(t, [unsaved(x)], x.shape, moved, moved)


def _operators(
    t: Tape, elements: int, moves: tuple[float, ...], host: str = "elementwise"
) -> None:
    """Kernels that move so many bytes an element."""
    t.cpu(host, len(moves))
    for moved in moves:
        pass_over(t, elements, moved * elements)
