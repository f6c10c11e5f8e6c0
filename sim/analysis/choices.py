"""What NCCL chooses otherwise in one plan of a step than in another.

NCCL's tuner estimates every algorithm and protocol from the bandwidth that it believes to have, and takes the least.
Its estimates are not what they take: with faster links it may take one that is slower. So a better cluster can have a
slower step, and a worse one a faster step; `nccl.algo` and `nccl.proto` hold the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.execution import Timed
from prestep.sim.graph.opgraph import Comm
from prestep.sim.planning.planned import Planned
from prestep.sim.units import format_bytes

Kind = tuple[str, str, float]  # axis, operation, bytes


@dataclass(frozen=True)
class Choice:
    """A kind of communication that another algorithm or protocol runs after a change.

    Attributes
    ----------
    axis, operation : str
    size : float
        Bytes as nccl-tests counts them.
    before, after : str
        Algorithm and protocol ("ring LL128").
    """

    axis: str
    operation: str
    size: float
    before: str
    after: str

    def __str__(self) -> str:
        """`dp all_reduce of 32 MiB by tree LL128, not ring LL128`."""
        what = f"{self.axis} {self.operation} of {format_bytes(self.size)}"
        return f"{what} by {self.after}, not {self.before}"


def changed_choices(before: Planned, after: Planned) -> tuple[Choice, ...]:
    """Communications of the same axis, operation and size that are run otherwise; the largest first."""
    one, other = _chosen(before), _chosen(after)
    changed = [
        Choice(*kind, one[kind], other[kind])
        for kind in one
        if other.get(kind, one[kind]) != one[kind]
    ]
    return tuple(sorted(changed, key=lambda c: (-c.size, c.axis, c.operation)))


def alone(planned: Planned) -> dict[Kind, float]:
    """Seconds of every kind of communication on an idle network; of several alike the last one's."""
    parts: list[Timed] = [planned, *(one.timed for one in planned.chains.values())]
    return {
        (comm.axis, comm.op, comm.size): plan.duration(part.bandwidth)
        for part in parts
        for comm, plan in zip(part.graph.comms, part.plans, strict=True)
    }


def _chosen(planned: Planned) -> dict[Kind, str]:
    """Algorithm and protocol of every kind of communication; of several alike the last one's."""
    return {
        (comm.axis, comm.op, comm.size): f"{plan.algo} {plan.proto}".strip()
        for comm, plan in _planned(planned)
    }


def _planned(planned: Planned) -> Iterator[tuple[Comm, Plan]]:
    """Every communication of a step with its plan, those within its chains too."""
    inner: list[Timed] = [one.timed for one in planned.chains.values()]
    for timed in (planned, *inner):
        yield from zip(timed.graph.comms, timed.plans, strict=True)
