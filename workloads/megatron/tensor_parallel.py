"""Collectives of the tensor-parallel group, on a stream of their own."""

from __future__ import annotations

from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl tp"


def begin(t: Tape, op: str, size: float, group: Group, copied: bool = False) -> None:
    """A collective on the group's stream, after the compute so far; who needs it waits."""
    group.collective(t, op, size, STREAM, "functional_collective", copied=copied)


def finish(t: Tape) -> None:
    """Computation waits for the collectives begun so far."""
    t.wait(t.record(STREAM))


def gather(t: Tape, x: Tensor, group: Group) -> None:
    """All parts of a value on every rank of the group."""
    begin(t, "all_gather", x.size * group.size, group)
    finish(t)


def reduce(t: Tape, y: Tensor, group: Group, sequence: bool) -> None:
    """The sum of a value over the group, on every rank or (``sequence``) a part on each."""
    begin(t, "reduce_scatter" if sequence else "all_reduce", y.size, group)
    finish(t)
