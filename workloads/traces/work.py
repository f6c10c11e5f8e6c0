"""Operations of one rank in the order of its host, the families of their kernels, and where ranks meet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from prestep.sim import files
from prestep.workloads.traces.collectives import SYNCHRONISING, payload
from prestep.workloads.traces.nodes import UNTIMED
from prestep.workloads.traces.schema import Span
from prestep.workloads.traces.steps import Step

COMMUNICATION = "communication"
# First match wins; patterns are of names that cuBLAS, cuDNN, PyTorch, Triton and the communication libraries write.
FAMILIES = tuple(files.beside(__file__)["families"].items())
_COMPILED = tuple(
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES
)


@cache
def family(name: str) -> str:
    """Family of a kernel: "gemm", "attention", ..., "other"."""
    if name.startswith("triton_"):
        return "compiled"
    return next(
        (known for known, pattern in _COMPILED if pattern.search(name)), "other"
    )


GPU, SYNC, MARK = 0, 1, 2
EPS = 2e-6  # s; clocks of host and GPU are converted into each other with about this error


@dataclass(slots=True)
class Op:
    """One operation; times in seconds of the recording.

    `issue` is when the host launched it (or came to the synchronisation), -inf before the recording began.
    """

    kind: int
    name: str
    issue: float
    start: float
    end: float
    stream: int = 0
    operator: str = ""
    collective: str = ""
    group: str = ""
    peers: str = ""
    sequence: int = -1
    bytes: float = 0.0
    correlation: int = -1
    step: int = -1
    thread: int = 0
    linked: bool = True
    blocking: bool = False  # the launch call returned only when the work was done
    shape: str = ""
    dtype: str = ""
    deps: list[int] = field(default_factory=list)
    comms: tuple[int, ...] = ()  # rendezvous, once matched
    finish: float = (
        0.0  # end as recorded, where `end` is that of all ranks of a collective
    )

    @property
    def family(self) -> str:
        """The family of its kernel; "communication" also where no collective is known that it is a part of."""
        return COMMUNICATION if self.collective else family(self.name)


@dataclass
class Work:
    """A rank's operations in program order.

    `steps` are (name, start, end) on the host; `notes` counts what had to be inferred or repaired.
    """

    rank: int
    ops: list[Op]
    steps: list[Step]
    notes: Counter[str]
    calls: dict[str, list[Span]]
    gradients: list[tuple[float, float]] = field(
        default_factory=list
    )  # (when it was ready on the host, bytes)
    path: str = ""

    @property
    def timed(self) -> bool:
        """Whether its times were recorded; else they follow from durations and order."""
        return UNTIMED not in self.notes

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives steps other names; one that would have the name of another gets its rank's."""
        own = {
            name: f"{name} of rank {self.rank}"
            for name, _, _ in self.steps
            if name in set(names.values())
        }
        names = own | dict(names)
        self.steps = [
            (names.get(name, name), start, end) for name, start, end in self.steps
        ]
        for op in self.ops:
            if op.kind == MARK:
                what, _, name = op.name.partition(" ")
                op.name = f"{what} {names.get(name, name)}"

    def shift(self, offset: float) -> None:
        """Moves all times."""
        for op in self.ops:
            op.issue, op.start = op.issue + offset, op.start + offset
            op.end, op.finish = op.end + offset, op.finish + offset
        self.steps = [
            (name, start + offset, end + offset) for name, start, end in self.steps
        ]
        self.gradients = [(time + offset, size) for time, size in self.gradients]


def fill_payloads(ops: list[Op], world: int) -> None:
    """Bytes of collectives from the shapes of their operators, where no metadata said them."""
    for op in ops:
        if op.collective in SYNCHRONISING or op.collective in ("broadcast", "reduce"):
            op.bytes = op.bytes or payload(op.collective, op.shape, op.dtype, world)


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
