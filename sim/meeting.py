"""What meets in a run: a simulated rank with its running kernels, and one communication of several ranks.

Kernels and transfers on one GPU disturb each other both ways, and each is told when the other comes or goes: a
kernel when communication takes or gives back SMs, a transfer when the kernels beside it change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import simpy

from sim.network import Transfer
from sim.opgraph import Program


def ended(ranks: Sequence[Rank]) -> float:
    """Share of the ranks' operations that have ended, 0 to 1: how far a run is, for who watches it."""
    ends = [np.array(rank.end) for rank in ranks]
    return sum(int((end >= 0).sum()) for end in ends) / (sum(map(len, ends)) or 1)


class Rank:
    """State of one simulated rank while it runs."""

    def __init__(self, env: simpy.Environment, program: Program, steps: int) -> None:
        self.env, self.program = env, program
        total = steps * len(program)
        self.launch = [0.0] * total
        self.start = [-1.0] * total
        self.end = [-1.0] * total
        self.ready: dict[int, float] = {}  # communication: when the last peer had arrived
        self.issued = 0
        self.channels = 0
        self.running: dict[int, simpy.Process] = {}
        self.grains: dict[int, float] = {}  # streams on which a chain runs: when one of its kernels ends, on average
        self.told: set[int] = set()  # streams whose kernel has yet to hear that its speed changed
        self.transferring: list[Meeting] = []
        # Streams with a kernel running or coming right after the last one: how much longer transfers take beside it.
        self.working: dict[int, float] = {}
        self.kernel_end: simpy.Event | None = None
        self._waiters: dict[int, simpy.Event] = {}
        self._issue: simpy.Event | None = None

    def ended(self, g: int) -> simpy.Event:
        """Event of the end of operation ``g`` (counted over steps)."""
        if g not in self._waiters:
            self._waiters[g] = self.env.event()
        return self._waiters[g]

    def finish(self, g: int, time: float) -> None:
        self.end[g] = time
        event = self._waiters.pop(g, None)
        if event is not None:
            event.succeed()

    def publish(self, issued: int) -> None:
        """The host has decided the launch times of all operations before ``issued``."""
        if issued > self.issued:
            self.issued = issued
            if self._issue is not None:
                self._issue.succeed()
                self._issue = None

    def issue(self) -> simpy.Event:
        if self._issue is None:
            self._issue = self.env.event()
        return self._issue

    def work(self, stream: int, contention: float) -> None:
        """A stream goes on with a kernel: transfers beside it take longer by the factor `contention`."""
        if self.working.get(stream) != contention:
            self.working[stream] = contention
            self._adapt()

    def rest(self, stream: int) -> None:
        """A stream has nothing to run for a while."""
        if stream in self.working:
            del self.working[stream]
            self._adapt()

    def _adapt(self) -> None:
        for meeting in self.transferring:
            meeting.adapt()

    def hold(self, channels: int) -> None:
        """Communication takes (or, negative, gives back) SMs: running kernels change speed."""
        self.channels += channels
        # Once, however often it changes at one moment: a kernel that ends on hearing of it must not hear it again.
        for stream, process in self.running.items():
            if stream not in self.told:
                self.told.add(stream)
                process.interrupt()


class Meeting:
    """One communication of one step: counts arrivals, moves the bytes and tells everyone when it has ended."""

    __slots__ = ("begin", "done", "ranks", "ready", "senders", "sent", "transfer")

    def __init__(self, env: simpy.Environment) -> None:
        self.transfer: Transfer | None = None
        self.ranks: list[Rank] = []
        self.begin = 0.0
        self.ready = env.event()
        self.done = env.event()
        # Kernels of these ranks may end when it is sent: the rest is in their buffers.
        self.senders: list[Rank] = []
        self.sent = env.event()

    def over(self, rank: Rank) -> simpy.Event:
        """When it has ended for a rank."""
        return self.sent if rank in self.senders else self.done

    @property
    def speed(self) -> float:
        """Less than 1 while kernels run beside it on any of its GPUs."""
        return 1.0 / max((beside for rank in self.ranks for beside in rank.working.values()), default=1.0)

    def adapt(self) -> None:
        """Kernels beside it came or went."""
        if self.transfer is not None:
            self.transfer.limit(self.speed)
