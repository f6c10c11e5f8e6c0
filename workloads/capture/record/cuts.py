"""Where DistributedDataParallel cuts a compiled function: where a bucket of gradients fills, another graph begins.

Dynamo does so to what is compiled within DDP's forward pass (torch/_dynamo/backends/distributed.py, DDPOptimizer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._dynamo import config
from torch.nn.parallel import DistributedDataParallel

from prestep.workloads.fusion.cuts import cut


class Cuts:
    """The cuts of one function: learnt in its first call under DDP, which comes before the recorded step.

    Attributes
    ----------
    whole
        It has a checkpoint inside, which Dynamo does not cut.
    """

    def __init__(self, see: Callable[[torch.Tensor], int]) -> None:
        self.see, self.whole = see, False
        self._starts: set[int] | None = None  # weights with which graphs begin
        self._sizes: dict[
            int, float
        ] = {}  # of weights in the order in which they are read
        self._weights: dict[int, float] = {}
        self._left: set[int] = set()
        self._cap = 0.0

    def begin(self) -> None:
        """The function is called."""
        self._left = set(self._starts or ())
        ddp = DistributedDataParallel._get_active_ddp_module()
        if self._starts is None and ddp is not None and config.optimize_ddp:
            self._cap = float(ddp.bucket_bytes_cap)
            trained = (p for p in ddp.parameters() if p.requires_grad)
            self._weights = {self.see(p): float(p.nbytes) for p in trained}

    def starts(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether an operation that reads these is the first of another graph."""
        if not (self._weights or self._left):
            return False
        read = {self.see(each) for each in tensors}
        for number in read & self._weights.keys():
            self._sizes.setdefault(number, self._weights[number])
        first = bool(read & self._left) and not self.whole
        self._left -= read
        return first

    def end(self) -> None:
        """The call is over."""
        if self._weights:
            order = list(self._sizes)
            groups = cut(list(self._sizes.values()), self._cap)
            self._starts = {order[group[0]] for group in groups[1:]}
            self._weights = {}
