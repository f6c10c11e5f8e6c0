"""Exchange of tokens between ranks: to the ranks of their experts, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from prestep.sim.graph.opgraph import Tokens
from prestep.workloads.exchanges import tensor
from prestep.workloads.megatron.elementwise import unsaved
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl ep"


class Way(NamedTuple):
    """A collective, or what a kernel made for it exchanges in its place."""

    op: str
    tokens: Tokens | None = None


@dataclass(frozen=True)
class TokenExchange:
    """Collectives that bring rows to the ranks of their experts (``forth``) and ``back``; nothing for one rank.

    Each is the other's backward and moves ``size`` bytes, and ``weights`` bytes of the router's weights besides on the
    way to experts, whose gradients come back. ``aside`` lets all computation run beside them: that of another
    microbatch, which lasts as long as this one's.
    """

    group: Group
    forth: Way
    back: Way
    size: float
    aside: bool = False
    weights: float = 0.0

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
        size = self.size + self.weights
        y = self._send(t, self.forth, size, shape, x.itemsize, meanwhile)
        return self._with_history(t, x, y, self.back, size)

    def from_experts(self, t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Results on the ranks of their tokens."""
        if self.group.size == 1:
            return x
        y = self._send(t, self.back, self.size, shape, x.itemsize)
        return self._with_history(t, x, y, self.forth, self.size)

    def _with_history(
        self, t: Tape, x: Tensor, y: Tensor, reverse: Way, size: float
    ) -> Tensor:
        """Gradients travel by the ``reverse`` collective, ``size`` bytes."""
        shape, itemsize = x.shape, x.itemsize
        return t.apply(
            y, [unsaved(x)], lambda g: [self._send(t, reverse, size, shape, itemsize)]
        )

    def _send(
        self,
        t: Tape,
        way: Way,
        size: float,
        shape: tuple[int, ...],
        itemsize: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """What arrives here."""
        stream = STREAM if self.group.axis == "ep" else tensor.STREAM
        y = t.empty(shape, itemsize)
        self.group.collective(
            t,
            way.op,
            size,
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
