"""A process group seen from one rank: numbers its collectives so that peers meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workloads.torch.tape import Tape


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
    """

    axis: str
    ranks: tuple[int, ...]
    copies: Sequence[tuple[int, ...]]
    arrivals: int
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
    ) -> None:
        """Issues a collective on ``stream`` after the current stream's work so far; ``copied``: by copy engines."""
        t.wait(t.record(), stream)
        t.cpu(host)
        key = (self.axis, self.ranks, self.issued)
        self.issued += 1
        part = t.shared.rendezvous.join(
            key, op, size, self.copies, self.axis, self.arrivals, in_place, copied
        )
        t.communicate((part,), stream, op)
        if t.blocking:
            t.synchronize(stream)


def transfer(
    t: Tape,
    source: int,
    target: int,
    tag: tuple[object, ...],
    size: float,
    copies: Sequence[int],
) -> int:
    """The rendezvous of one point-to-point transfer; ``copies`` are rank offsets of its symmetric copies."""
    groups = [(source + c, target + c) for c in copies]
    return t.shared.rendezvous.join(
        ("pp", source, target, *tag), "send", size, groups, "pp", 2
    )
