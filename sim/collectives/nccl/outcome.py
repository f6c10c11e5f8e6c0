"""What NCCL's search for channels answers; see `prestep.sim.collectives.nccl.graphs`."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.collectives.nccl.ways import LOC, PIX

BALANCED, SPLIT, TREE, RING, NVLS = 1, 2, 3, 4, 5
#: Budget of a walk for channels that are equal.
STEPS_SAME = 2**8


@dataclass(frozen=True)
class Channels:
    """What the search found.

    Attributes
    ----------
    pattern : int
        NCCL's number: 1 balanced tree, 3 tree, 4 ring, 5 NVLink SHARP.
    inside, between : float
        GB/s of a channel inside the host, and between hosts.
    type_inside, type_between : int
        The farthest distance on the way (`prestep.sim.collectives.nccl.system.TYPES`).
    cross : int
        0: a channel leaves by the net it came in; 2: channels come in pairs that swap theirs.
    same : bool
        All channels were to visit the GPUs in one order.
    orders : tuple of tuple of int
        GPUs of every channel, by their place in the host.
    nets : tuple of (int, int)
        By which net a channel enters and leaves; () on one host.
    """

    pattern: int
    inside: float = 0.0
    between: float = 0.0
    type_inside: int = LOC
    type_between: int = PIX
    cross: int = 0
    same: bool = True
    orders: tuple[tuple[int, ...], ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    hops: int = 0
    least: int = 1
    most: int = 32

    @property
    def count(self) -> int:
        return len(self.orders)
