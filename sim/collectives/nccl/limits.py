"""What channels of a host can be at best, by what all its links together have room for.

A walk of NCCL's search goes on until its budget is spent. Where nothing better can be left to find, it need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prestep.sim.collectives.nccl.outcome import BALANCED, NVLS, Channels
from prestep.sim.collectives.nccl.ways import Way

Rows = Sequence[Sequence[Way]]


class Limits(NamedTuple):
    """Limits of a host's channels.

    Attributes
    ----------
    gpus : int
    egress : int
        MB/s of all links by which ways from GPU to GPU begin.
    inside, out, back : int
        Fewest hops between two GPUs, from a GPU to a net, and from a net to a GPU.
    """

    gpus: int
    egress: int
    inside: int
    out: int
    back: int

    @classmethod
    def of(cls, room: Sequence[int], between: Rows, out: Rows, back: Rows) -> Limits:
        """The limits of a host with such links and ways."""
        first = {way.links[0] for row in between for way in row if way.hops}
        egress = sum(room[link] for link in first)
        return cls(len(between), egress, *map(_fewest_hops, (between, out, back)))

    def improvable(self, target: Channels, best: Channels, nets: Sequence[int]) -> bool:
        """Whether a walk may find better channels than the best so far; `nets`: MB/s of each.

        Every channel takes its speed from a link for each GPU but the last, and from the net by which it comes in.
        """
        if target.pattern == NVLS or not nets:
            return True
        count, steps = target.most, self.gpus - 1
        if taken := steps * round(target.inside * 1000):
            count = min(count, self.egress // taken)
        if taken := int(target.between) * 1000:
            count = min(count, sum(speed // taken for speed in nets))
        now, then = count * target.inside, best.count * best.inside
        if count < target.least or now < then:
            return False
        same = target.pattern == best.pattern and target.cross == best.cross
        if now > then or not same:
            return now > then
        leaves = 2 if target.pattern == BALANCED and steps else 1
        hops = self.inside * steps + leaves * self.out + self.back
        return count * hops < best.hops


def _fewest_hops(rows: Rows) -> int:
    """Of the ways that there are; 0 without any."""
    return min((way.hops for row in rows for way in row if way.hops), default=0)
