"""torch.amp: autocast over parameters in fp32 that no FSDP casts, and loss scaling for fp16.

Under autocast products take copies of weights in 16 bits (aten/src/ATen/autocast_mode.cpp). A forward pass casts each
matrix once (`cached_cast`), the cache and what products save for backward keep the copy, and the gradient of the copy
becomes one in fp32. The cache of a region that runs again is empty, so its weights are cast again; that is left out.
Embeddings are looked up in fp32. Residuals, which they leave in fp32, count as 16 bits here.

The scaler multiplies the loss, divides gradients and searches them for infinities (torch/amp/grad_scaler.py and
aten/src/ATen/native/cuda/AmpKernels.cu of PyTorch 2.9).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

LOOKED_UP = ("embedding", "position")
STREAM = "nccl loss scale"
TENSORS = 110  # that one launch of a foreach kernel takes
NUMBER = 4.0  # bytes of the scale, and of the flag


class Autocast:
    """Copies of a rank's matrices in 16 bits, from a forward pass to the gradient that the pass leads to."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.copies: dict[Tensor, list[Storage]] = defaultdict(list)
        tape.widened = self._drop

    def cast(self, parameters: Sequence[Tensor]) -> None:
        """Casts the matrices that a forward pass multiplies by."""
        t = self.tape
        for p in parameters:
            if len(p.shape) < 2 or p.stored == p.itemsize or p.name in LOOKED_UP:
                continue
            t.cpu("elementwise_nograd")
            t.launch(Kernel("aten copy", (p.elements,), bytes=p.size + p.stored_size))
            if p.requires_grad:
                self.copies[p].append(Storage(t.memory, p.size, "buffers"))

    def _drop(self, p: Tensor) -> None:
        """Frees the oldest copy of a matrix: its gradient is there."""
        if self.copies[p]:
            self.copies[p].pop(0)


def scale(t: Tape) -> None:
    """The loss times the scale."""
    t.cpu("elementwise")
    t.launch(Kernel("aten mul", (1,), bytes=3 * NUMBER))


@dataclass(frozen=True)
class LossScaler:
    """Loss scaling of one rank.

    Attributes
    ----------
    groups : tuple of Group
        Ranks that each have a part of the gradients, and so must tell each other of infinities; an axis each.
    """

    groups: tuple[Group, ...] = ()

    def unscale(self, t: Tape, stored: Sequence[Tensor], wide: int) -> None:
        """Gradients divided by the scale where they lie, a flag for infinities, and the next scale.

        ``wide`` are the bytes of a gradient.
        """
        elements = sum(p.elements for p in stored)
        t.cpu("elementwise_nograd", -(-len(stored) // TENSORS))
        t.launch(Kernel("fused", (elements,), bytes=2.0 * wide * elements))
        for group in self.groups:
            group.collective(t, "all_reduce", NUMBER, STREAM)
            t.wait(t.record(STREAM))
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (1,), bytes=3 * NUMBER))
