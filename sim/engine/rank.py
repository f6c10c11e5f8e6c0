"""A simulated rank while it runs: the times of its operations, its running kernels, and who takes its SMs.

Kernels and transfers on one GPU slow each other. A kernel changes its speed when communication takes or gives back
SMs; a transfer changes its own when the kernels beside it change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import simpy

from prestep.sim.engine.clock import URGENT, Clock
from prestep.sim.engine.host_thread import HostThread
from prestep.sim.graph.opgraph import Program

if TYPE_CHECKING:
    from prestep.sim.engine.rendezvous import Meeting

# Seconds of a kernel that are no more than rounding errors: it ends at once.
ROUNDING = 1e-12


# By operation counted over steps: seconds; and seconds by axis.
Moments = dict[int, float]
Waits = dict[int, dict[str, float]]


class Running:
    """A kernel under way; its speed follows the SMs that communication leaves it.

    Its end is an event. When the end moves, those who wait for it are moved to another event: SimPy has no way to put
    off a timeout, and to interrupt the process that waits costs more.
    """

    __slots__ = ("end", "env", "kernel", "left", "since", "speed")

    def __init__(
        self, env: Clock, end: simpy.Event, kernel: int, left: float, speed: float
    ) -> None:
        self.env, self.end, self.kernel = env, end, kernel
        self.left, self.since, self.speed = left, env.now, speed

    def adapt(self, speed: float) -> None:
        """Runs at another speed from now on."""
        env = self.env
        self.left -= (env.now - self.since) * self.speed
        self.since, self.speed = env.now, speed
        ended = self.left <= ROUNDING
        self.end_with(
            env.after(0.0, URGENT) if ended else env.timeout(self.left / speed)
        )

    def end_with(self, event: simpy.Event) -> None:
        """Ends with another event from now on: those who wait for its end wait for that one."""
        event.callbacks, self.end.callbacks = self.end.callbacks, event.callbacks
        self.end = event


def ended(ranks: Sequence[Rank]) -> float:
    """Share of the ranks' operations that have ended, 0 to 1: how far the run is."""
    ends = [np.array(rank.end) for rank in ranks]
    return sum(int((end >= 0).sum()) for end in ends) / (sum(map(len, ends)) or 1)


class Rank:
    """State of one simulated rank while it runs; `limit`, `begin` and `noise` are of its host thread."""

    kernel_end: simpy.Event | None = None

    def __init__(
        self,
        env: Clock,
        program: Program,
        steps: int,
        slowdown: Callable[[int, int], float],
        limit: int,
        begin: float = 0.0,
        noise: Sequence[float] | None = None,
    ) -> None:
        self.env, self.program, self.slowdown = env, program, slowdown
        total = steps * len(program)
        self.launch = [0.0] * total
        self.start = [-1.0] * total
        self.end = [-1.0] * total
        # Seconds of the power budget that were left when an operation began.
        self.budget = [0.0] * total
        columns = self.launch, self.start, self.end
        self.host = HostThread(env, program, *columns, self.ended, limit, begin, noise)
        # When the last peer of a communication had arrived.
        self.ready: Moments = {}
        # Of chains, seconds by axis in which their computation waited for their own exchanges.
        self.exposed: Waits = {}
        self.channels = 0
        # Those of each communicator, while it has any kernel here.
        self._held: defaultdict[int, int] = defaultdict(int)
        # By stream, as all below.
        self.running: dict[int, Running] = {}
        # A chain of kernels that runs: seconds after which one of them ends, on average.
        self.grains: dict[int, float] = {}
        # A kernel that runs, or comes right after the last one: how much longer transfers take beside it.
        self.working: dict[int, float] = {}
        self.transferring: list[Meeting] = []
        self._waiters: dict[int, simpy.Event] = {}

    def ended(self, g: int) -> simpy.Event:
        """Event of the end of operation ``g`` (counted over steps)."""
        waiter = self._waiters.get(g)
        if waiter is None:
            waiter = self._waiters[g] = simpy.Event(self.env)
        return waiter

    def finish(self, g: int, time: float) -> None:
        self.end[g] = time
        event = self._waiters.pop(g, None)
        if event is not None:
            event.succeed()

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

    def free_sms(self, stream: int) -> None:
        """A stream's kernel has ended: a communication that waited for its SMs may start."""
        if self.grains:
            self.grains.pop(stream, None)
        if self.kernel_end is not None:
            self.kernel_end.succeed()
            self.kernel_end = None

    def _adapt(self) -> None:
        for meeting in self.transferring:
            meeting.adapt()

    def holds(self, communicators: frozenset[int]) -> bool:
        """Whether any of some communicators has SMs here."""
        held = self._held
        return any(held[one] > 0 for one in communicators)

    def moving(self, communicators: frozenset[int]) -> Meeting | None:
        """The first transfer under way of any of some communicators."""
        for meeting in self.transferring:
            if meeting.communicator in communicators:
                return meeting
        return None

    def hold(self, channels: int, communicators: frozenset[int]) -> None:
        """Communicators take (or, negative, give back) SMs: running kernels change speed."""
        self.channels += channels
        for communicator in communicators:
            self._held[communicator] += channels
        for running in self.running.values():
            running.adapt(
                1.0 / self.slowdown(running.kernel, self.channels)
                if self.channels
                else 1.0
            )
