"""Gradients of the head's weights that wait for the pipeline's end (Megatron: defer_embedding_wgrad_compute).

The last stage holds up all others: its head is a large product more. Its weights' gradients can come last, while the
stages before it still run backward (megatron/core/tensor_parallel/layers.py, linear_with_grad_accumulation; utils.py,
drain_embedding_wgrad_compute). Until then each microbatch keeps the head's input and the gradient of its scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prestep.workloads.megatron.passes import NOTHING, Pass
from prestep.workloads.memory.account import Storage

if TYPE_CHECKING:
    from prestep.workloads.megatron.stage import StageStep
    from prestep.workloads.megatron.units import Unit

HEAD = "head"


@dataclass
class DeferredHead:
    """The products of the head that a rank has put off in this step.

    Attributes
    ----------
    rank
        The pipeline rank.
    kept
        What each product that was put off keeps in memory.
    """

    rank: StageStep
    kept: list[Storage] = field(default_factory=list)

    @property
    def stage(self) -> int:
        """The stage that has the head."""
        return len(self.rank.owner) - 1

    @property
    def used(self) -> bool:
        """Whether this rank puts off any."""
        asked = self.rank.o.defer_embedding_wgrad_compute
        return asked and self.rank.grid.pp > 1 and self.stage in self.rank.stages

    def takes(self, stage: int) -> bool:
        """Whether a stage's next backward pass leaves its product: the first ones of a step do, up to the limit."""
        limit = self.rank.o.wgrad_deferral_limit
        full = limit > 0 and len(self.kept) >= limit
        return self.used and stage == self.stage and not full

    def backward(self, unit: Unit) -> Pass:
        """A unit's backward pass, of the head without the product of its weights' gradient."""
        return unit.halves.input if unit.name == HEAD else unit.backward

    def keep(self) -> None:
        """One more product is put off."""
        parts = self.rank.parts(self.stage)
        size = sum(
            times * unit.halves.held for unit, times in parts if unit.name == HEAD
        )
        self.kept.append(Storage(self.rank.tape.memory, size, "activations"))

    def compute(self) -> None:
        """All of them, one after the other; with the last one the stage's gradients are complete."""
        rank = self.rank
        rank.tape.phase = 1
        for _ in self.kept[1:]:
            for unit, times in rank.parts(self.stage):
                rank.emit(self._products(unit), times)
        self.kept.clear()
        rank.back(self.stage, self._products)

    def _products(self, unit: Unit) -> Pass:
        """The product that was put off, of the head; of other units nothing."""
        return unit.halves.weights if unit.name == HEAD else NOTHING
