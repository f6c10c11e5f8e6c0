"""What one rank did, in the order its host issued it: GPU operations, synchronisations, step marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prestep.workloads.traces.collectives import SYNCHRONISING, payload
from prestep.workloads.traces.families import COMMUNICATION, family
from prestep.workloads.traces.nodes import UNTIMED
from prestep.workloads.traces.row import Row
from prestep.workloads.traces.steps import Step

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
    calls: dict[str, list[Row]]
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
