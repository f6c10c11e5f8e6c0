"""Frozen weights in four bits, which are written out in 16 bits before each product (QLoRA, arXiv 2305.14314).

Source: bitsandbytes, autograd/_functions.py, `MatMul4Bit`: forward and backward call `dequantize_4bit` and multiply
by the result, which nothing keeps. Blocks of 64 elements share a scale of four bytes (`quantize_4bit`).
With double quantization scales are in 8 bits, and 256 of them share one more: they are written out first, by a kernel
for themselves and one that adds their mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.memory import Storage
from prestep.workloads.torch.tape import Tape, Tensor

#: Elements that share a scale, and scales that share one themselves.
BLOCK, SCALES = 64, 256
#: Bytes of an element in four bits, and of a scale.
HALF, SCALE = 0.5, 4.0


@dataclass(frozen=True)
class FourBits:
    """A weight in NF4; `double`: its scales are in 8 bits."""

    double: bool

    def size(self, elements: int) -> float:
        """Bytes of so many elements with their scales."""
        scales = elements / BLOCK
        each = 1.0 + SCALE / SCALES if self.double else SCALE
        return HALF * elements + each * scales

    def written_out(self, t: Tape, w: Tensor) -> Tensor:
        """The weight in 16 bits."""
        scales, n = -(-w.elements // BLOCK), w.elements
        if self.double:
            wide = Storage(t.memory, SCALE * scales, "workspace")
            for moved in ((1.0 + SCALE) * scales, 2 * SCALE * scales):
                t.cpu("elementwise_nograd")
                t.launch(Kernel("fused", (scales,), bytes=moved))
            read = HALF * n + SCALE * scales
            del wide
        else:
            read = self.size(n)
        t.cpu("elementwise_nograd")
        y = t.empty(w.shape, w.itemsize, "workspace")
        t.launch(Kernel("fused", (n,), bytes=read + w.itemsize * n))
        return y


def pack(t: Tape, weights: Iterable[Tensor], double: bool) -> None:
    """Keeps frozen matrices in four bits; products of them write them out."""
    for w in weights:
        form = FourBits(double)
        w.storage = Storage(t.memory, form.size(w.elements), "parameters")
        t.four_bits[w] = form
