"""Exchange of tokens between ranks: to the ranks of their experts, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from prestep.sim.graph.opgraph import Tokens
from prestep.workloads.exchanges import tensor
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
        return self._sent(t, x, shape, size, (self.forth, self.back), meanwhile)

    def from_experts(self, t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Results on the ranks of their tokens."""
        if self.group.size == 1:
            return x
        return self._sent(t, x, shape, self.size, (self.back, self.forth))

    def _sent(
        self,
        t: Tape,
        x: Tensor,
        shape: tuple[int, ...],
        size: float,
        ways: tuple[Way, Way],
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """What arrives of `size` bytes; gradients travel by the second way."""
        (forth, back), before, itemsize = ways, x.shape, x.itemsize
        y = self._send(t, forth, size, shape, itemsize, meanwhile)
        return t.apply(y, [x], lambda g: [self._send(t, back, size, before, itemsize)])

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
        host = "functional_collective"
        self.group.collective(t, way.op, size, stream, host, tokens=way.tokens)
        arrival = t.record(stream)
        if meanwhile is not None:
            meanwhile()
        if not self.aside:
            t.wait(arrival)
        return y
