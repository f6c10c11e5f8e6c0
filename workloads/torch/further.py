"""Multi-token prediction in plain PyTorch: blocks behind the last one that predict later tokens (arXiv 2412.19437).

Operators are those of DeepSeek-V3's module: the state and the next token's embedding, both normed, beside each other,
projected to one state; a block; a norm before the head that all predictions share. What is outside the block is whole
on every tensor-parallel rank, as the last norm and the head are.
"""

from __future__ import annotations

from collections.abc import Callable

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.block import Block, BlockParallel, Norm
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class Further(Module):
    """One further prediction: its own norms and projection, and its block, the ``index``-th of the model."""

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        super().__init__()
        norms = (self.child(Norm(t, m)) for _ in range(3))
        self.state_norm, self.word_norm, self.last_norm = norms
        self.projection = self.add(t, m.hidden, 2 * m.hidden, name="eh_proj")
        self.block = self.child(Block(t, m, index, parallel))

    def forward(
        self,
        t: Tape,
        state: Tensor,
        words: Tensor,
        run_block: Callable[[Block, Tensor], Tensor],
    ) -> Tensor:
        """The state behind the block, which the next prediction begins with; `last_norm` stands before the head."""
        t.cpu("module")
        state = self.state_norm.forward(t, state)
        words = self.word_norm.forward(t, words)
        both = aten.cat(t, [state, words])
        del state, words
        return run_block(self.block, F.linear(t, both, self.projection))
