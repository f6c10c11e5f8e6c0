"""A hybrid's layer in plain PyTorch: a norm, one part named by its letter, and the residual sum.

As NemotronHBlock of transformers. It is what FSDP gathers, checkpointing runs again and a compiler sees at once. Models
whose blocks have two parts (Qwen3-Next, Kimi Linear) are two such layers a block.
"""

from __future__ import annotations

from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.block import Block, BlockParallel, Norm, Part
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.scan_layers import LAYERS
from prestep.workloads.torch.tape import Tape, Tensor


class HybridBlock(Block):
    """The ``index``-th layer of a pattern; `attention` or `ffn` is its part where it is one of these."""

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        Module.__init__(self)
        self.index, self.parallel = index, parallel
        self.letter = m.part_of(index)
        self.norm1 = Norm(t, m)
        self.part = self._part(t, m)
        self.parameters = self.norm1.parameters + self.part.parameters

    def _part(self, t: Tape, m: ModelSpec):  # type: ignore[no-untyped-def]
        if self.letter in LAYERS:
            return LAYERS[self.letter](t, m)
        if self.letter == hybrid.ATTENTION:
            self.attention = self.parallel.attention(t, m, m.window_of(self.index))
            return self.attention
        experts = self.letter == hybrid.EXPERTS
        self.ffn = self.parallel.feed_forward(t, m, experts)
        return self.ffn

    @property
    def branches(self) -> list[tuple[Norm, Part]]:
        """The only one."""
        return [(self.norm1, self.part)]

    @property
    def inner_norm(self) -> list[Tensor]:
        """There is no second norm."""
        return []
