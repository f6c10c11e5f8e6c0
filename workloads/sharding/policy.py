"""Decisions about fully sharded parameters, as values that `ShardedUnit` follows.

A policy says what bounds a unit, how far ahead it is gathered, when it is freed, on which streams, in which types it is
kept, sent and reduced, and which kernels copy it. Memory and bytes on links follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.parallel.group import Group


class Mesh(NamedTuple):
    """Ranks that share one copy of some parameters, and those with the same shard of other copies (HSDP)."""

    group: Group
    copies: Group | None = None

    @property
    def shards(self) -> bool:
        """Whether another rank has a part."""
        return self.group.size > 1


@dataclass(frozen=True)
class Part:
    """Parameters of a unit that lie on one mesh, in bytes unless it says otherwise.

    Attributes
    ----------
    mesh : Mesh
    elements, trained : int
        Numbers of all parameters, and of those that have gradients.
    full, stored : float
        As a module computes with them, and as shards keep them: in fp32 with master weights.
    sent : float
        As they are gathered.
    gradient, reduced, kept : float
        Gradients as backward makes them, as they are reduced, and as shards keep them.
    narrow : int
        Of a number as a module computes with it.
    cast : int
        Elements that are gathered in fp8.
    tensors : int
        Parameters that are copied one by one.
    """

    mesh: Mesh
    elements: int
    trained: int
    full: float
    stored: float
    sent: float
    gradient: float
    reduced: float
    kept: float
    narrow: int = 2
    cast: int = 0
    tensors: int = 1

    def added(self, first: bool) -> float:
        """Bytes moved to add whole gradients to those before, in the reduction's type; the first become its type."""
        if first and self.reduced == self.gradient:
            return 0.0
        return self.gradient + self.reduced * (1 if first else 2)

    @property
    def ranks(self) -> int:
        """Ranks that share one copy."""
        return self.mesh.group.size


Kernels = Callable[[Part], Iterable[Kernel]]
#: Kernels that also depend on whether gradients have been summed in the reduction's type, or are added to a shard.
Packing = Callable[[Part, bool], Iterable[Kernel]]


def no_kernels(part: Part, earlier: bool = False) -> Iterable[Kernel]:
    """Nothing is copied."""
    return ()


class Streams(NamedTuple):
    """Streams of a policy; ``copy_in`` is "" for the one that computes, ``between`` sums copies of shards."""

    copy_in: str
    gather: str
    reduce: str
    between: str


@dataclass(frozen=True)
class Policy:
    """Decisions about fully sharded parameters.

    Attributes
    ----------
    streams : Streams
    host : str
        What the host's time depends on: "" (collectives alone), "unit", or "tensor" (units, and tensors in them).
    flat : bool
        A unit is one flat parameter, whose views are used as they were gathered; else each tensor is copied out.
    prefetch : str
        When backward gathers the unit before: "before" this one's computation, "after" it, or "none".
    ahead, behind : float
        Units that layers gather beyond their own, forward and backward.
    by_elements : bool
        Those are counted in elements, and gathered before the host waits for the layer's own.
    queue : float
        Elements of gradients on their way to shards beyond which computation waits for the first.
    in_flight : int
        Gathers that the host issues before it waits for a unit to be freed; 0: no limit.
    one_buffer : bool
        A reduction waits until the one before has left its buffer.
    stored : int
        Bytes of a number that shards keep; 0: as parameters say.
    sent : int
        Bytes of a number that is gathered; 0: as modules compute with it.
    reduced : tuple of int
        Bytes of a number in reductions, of shared parameters and of experts; 0: as backward makes it.
    staged : bool
        Pipeline schedules gather, free and reduce units (`torch.distributed.pipelining` and FSDP2).
    copy_in, arrive, copy_out : callable
        Kernels before a gather, behind it on its stream, and on the computing stream.
    pack, store : callable
        Kernels that put gradients (or sums of them) into a reduction's buffer, and what was reduced into a shard (or
        to the shard that is there).
    """

    streams: Streams
    host: Literal["", "unit", "tensor"] = "tensor"
    flat: bool = False
    prefetch: Literal["before", "after", "none"] = "before"
    ahead: float = 0
    behind: float = 1
    by_elements: bool = False
    queue: float = 0
    in_flight: int = 0
    one_buffer: bool = True
    stored: int = 0
    sent: int = 0
    reduced: tuple[int, int] = (0, 0)
    staged: bool = True
    copy_in: Kernels = no_kernels
    arrive: Kernels = no_kernels
    copy_out: Kernels = no_kernels
    pack: Packing = no_kernels
    store: Packing = no_kernels
