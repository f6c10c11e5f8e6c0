"""Exchange of tokens between ranks: to the ranks of their experts, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sim.graph.tokens import Tokens
from workloads.megatron import tensor_parallel
from workloads.megatron.elementwise import unsaved
from workloads.parallel.group import Group
from workloads.torch.tape import Tape, Tensor

STREAM = "nccl ep"


class Way(NamedTuple):
    """A collective, or what a kernel made for it exchanges in its place."""

    op: str
    tokens: Tokens | None = None


@dataclass(frozen=True)
class TokenExchange:
    """Collectives that bring rows to the ranks of their experts (``forth``) and ``back``; nothing for one rank.

    Each is the other's backward and moves ``size`` bytes. ``aside`` lets all computation run beside them: that of
    another microbatch, which lasts as long as this one's.
    """

    group: Group
    forth: Way
    back: Way
    size: float
    aside: bool = False

    def to_experts(
        self,
        t: Tape,
        x: Tensor,
        shape: tuple[int, ...],
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Rows on the ranks of their experts; ``meanwhile`` runs beside their way there."""
        if self.group.size == 1:
            if meanwhile is not None:
                meanwhile()
            return x
        y = self._send(t, self.forth, shape, x.itemsize, meanwhile)
        return self._with_history(t, x, y, self.back)

    def from_experts(self, t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Results on the ranks of their tokens."""
        if self.group.size == 1:
            return x
        y = self._send(t, self.back, shape, x.itemsize)
        return self._with_history(t, x, y, self.forth)

    def _with_history(self, t: Tape, x: Tensor, y: Tensor, reverse: Way) -> Tensor:
        """Gradients travel by the ``reverse`` collective."""
        shape, itemsize = x.shape, x.itemsize
        return t.apply(
            y, [unsaved(x)], lambda g: [self._send(t, reverse, shape, itemsize)]
        )

    def _send(
        self,
        t: Tape,
        way: Way,
        shape: tuple[int, ...],
        itemsize: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """What arrives here."""
        stream = STREAM if self.group.axis == "ep" else tensor_parallel.STREAM
        y = t.empty(shape, itemsize)
        self.group.collective(
            t,
            way.op,
            self.size,
            stream,
            "functional_collective",
            tokens=way.tokens,
        )
        arrival = t.record(stream)
        if meanwhile is not None:
            meanwhile()
        if not self.aside:
            t.wait(arrival)
        return y
