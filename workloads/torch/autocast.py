"""Autocast over parameters in fp32 that no FSDP casts: products take copies of weights in 16 bits.

Source: aten/src/ATen/autocast_mode.cpp. A forward pass casts each matrix once (`cached_cast`), the cache and what
products save for backward keep the copy, and the gradient of the copy becomes one in fp32. The cache of a region that
runs again is empty, so its weights are cast again; that is left out. Embeddings are looked up in fp32. Residuals,
which they leave in fp32, count as 16 bits here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.memory import Storage
from prestep.workloads.torch.tape import Tape, Tensor

LOOKED_UP = ("embedding", "position")


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
            t.launch(Kernel("copy", (p.elements,), bytes=p.size + p.stored_size))
            if p.requires_grad:
                self.copies[p].append(Storage(t.memory, p.size, "buffers"))

    def _drop(self, p: Tensor) -> None:
        """Frees the oldest copy of a matrix: its gradient is there."""
        if self.copies[p]:
            self.copies[p].pop(0)
