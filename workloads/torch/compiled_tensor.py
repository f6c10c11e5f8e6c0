"""What tensor-parallel ranks exchange inside a compiled block: functional collectives between Inductor's kernels.

A block is one graph. Where tokens are split along the sequence, each norm's output is gathered once for all products
that take it (torchtitan's PrepareModuleInput, or AOTAutograd, which finds the gathers equal), and gathered outputs are
what backward finds: collectives are not computed again. Backward, the products' parts of one gradient are added up
before they are summed over ranks, once. All-reduces are in place; parts of several samples are put in order by a copy.
"""

from __future__ import annotations

from prestep.workloads.exchanges.tensor import STREAM
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.tensor import TensorParallel
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.compiled_adapters import Adapted
from prestep.workloads.torch.tape import Tape, Tensor


class Split(Adapted):
    """The exchanges of a block whose projections are split over ranks; without these nothing happens.

    Attributes
    ----------
    rows, part_rows, whole_rows : tuple of int
        Samples and tokens that the current values have, this rank's part of the sequence, and the whole.
    """

    def __init__(self, t: Tape, block: Block) -> None:
        super().__init__(t, block)
        way = block.parallel
        self.group: Group | None = None
        self.sequence = False
        if isinstance(way, TensorParallel):
            self.group, self.sequence = way.group, way.sequence

    def _begin(self, rows: tuple[int, ...]) -> None:
        """Takes samples and tokens of the block's input, and those of the products."""
        batch, tokens = rows
        ranks = self.group.size if self.group is not None and self.sequence else 1
        self.rows = self.part_rows = rows
        self.whole_rows = (batch, tokens * ranks)

    def _gathered(self, x: Tensor) -> Tensor:
        """A value of this rank's tokens, of all tokens."""
        group = self.group
        if group is None or not self.sequence:
            return x
        self.rows = self.whole_rows
        out = self._new(x.shape[-1], x.itemsize)
        group.collective(self.t, "all_gather", out.size, STREAM)
        self.t.wait(self.t.record(STREAM))
        self._in_order(x.shape[-1])
        return out

    def _summed(self, x: Tensor) -> Tensor:
        """The sum of all ranks' parts of a value, of this rank's tokens."""
        group = self.group
        if group is None:
            return x
        if self.sequence:
            self._in_order(x.shape[-1])
        op = "reduce_scatter" if self.sequence else "all_reduce"
        group.collective(self.t, op, x.size, STREAM)
        self.t.wait(self.t.record(STREAM))
        if not self.sequence:
            return x
        self.rows = self.part_rows
        return self._new(x.shape[-1], x.itemsize)

    def _summed_gradient(self, parts: list[Tensor]) -> list[Tensor]:
        """One gradient of all products that took a value, summed over ranks; without ranks the parts."""
        if self.group is None or not parts:
            return parts
        width = parts[0].shape[-1]
        if len(parts) > 1:
            self._fused("fused_add", width, len(parts) + 1)
        return [self._summed(parts[0])]

    def _in_order(self, width: int) -> None:
        """Tokens of several samples lie rank by rank in what travels."""
        if self.rows[0] > 1:
            self._fused("fused_transpose", width, 2)
