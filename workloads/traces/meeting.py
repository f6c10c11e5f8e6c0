"""A collective or transfer of a recorded job, with the operations of the ranks that recorded it."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.traces.work import Op


@dataclass(slots=True)
class Meeting:
    """One collective or transfer of the job.

    `members` are (rank, operation) of those that recorded it; `duration` is its transfer in seconds, without waiting
    for the last recorded rank. `sender` is set where the sender does not wait for the receiver: NCCL's buffers hold
    some megabytes. `in_place`: inputs lie in the outputs.
    """

    op: str
    size: float
    ranks: tuple[int, ...]
    axis: str
    members: list[tuple[int, Op]]
    duration: float = 0.0
    step: int = -1
    sender: int = -1
    in_place: bool = False

    @property
    def begin(self) -> float:
        """When it could start: the arrival of the last rank, or of the sender."""
        return max(op.start for rank, op in self.members if self.sender in (-1, rank))

    @property
    def done(self) -> float:
        """When it had ended, on the first rank."""
        return min(op.end for _, op in self.members)

    @property
    def missing(self) -> int:
        """Ranks that did not record it."""
        return max(0, len(set(self.ranks)) - len(self.members))
