"""A process group seen from one rank: numbers its collectives so that peers meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from prestep.sim.graph.opgraph import Tokens
from prestep.workloads.torch.tape import Tape


@dataclass
class Group:
    """Ranks that communicate over one parallel axis.

    Attributes
    ----------
    ranks : tuple of int
        Members, in group order.
    copies : sequence of tuples
        The group itself and its symmetric copies when one simulated rank stands for several.
    arrivals : int
        Members that are simulated.
    role : str
        What tells it from another group of the same ranks and axis.
    everywhere : int
        Symmetric copies, with those that meet it nowhere and are not listed; 0: all are.
    """

    axis: str
    ranks: tuple[int, ...]
    copies: Sequence[tuple[int, ...]]
    arrivals: int
    role: str = ""
    everywhere: int = 0
    issued: int = field(default=0)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def collective(
        self,
        t: Tape,
        op: str,
        size: float,
        stream: str,
        host: str = "collective",
        in_place: bool = False,
        copied: bool = False,
        tokens: Tokens | None = None,
    ) -> None:
        """Issues a collective on ``stream`` after the current stream's work so far.

        ``copied``: by copy engines; ``tokens``: by a kernel made for their exchange.
        """
        if t.traces:
            again = partial(
                self.collective,
                op=op,
                size=size,
                stream=stream,
                in_place=in_place,
                copied=copied,
                tokens=tokens,
            )
            t.postpone(again, op)
            return
        if t.drop_collective is not None and t.drop_collective(op, size / self.size):
            return
        t.wait(t.record(), stream)
        t.cpu(host)
        key = (self.axis, self.role, self.ranks, self.issued)
        self.issued += 1
        part = t.shared.rendezvous.join(
            key,
            op,
            size,
            self.copies,
            self.axis,
            self.arrivals,
            in_place,
            copied,
            self.everywhere,
            tokens,
        )
        t.communicate((part,), stream, op)
        if t.blocking:
            t.synchronize(stream)
