"""The host thread of a rank: issues operations in program order, ahead of the GPU up to a limit.

It is a SimPy process whose own clock runs ahead of the simulated time: as long as nothing blocks the thread, launch
times are sums of host costs, and no event is needed to add them up. It yields where the thread would block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import simpy

from prestep.sim.graph.opgraph import SYNC, Program


class HostThread:
    """Host thread of a rank; ``env.process(thread.run())`` issues its operations.

    The thread blocks when ``limit`` launches are outstanding (the CUDA launch queue is full) and at
    explicit synchronisations. Between those its clock adds up host costs.

    Parameters
    ----------
    program
        What it issues, so many times.
    launch, start, end
        Seconds of every operation, counted over steps; an end is negative until it is known. Launches are written here,
        and starts and ends of synchronisations.
    ended
        Event of the end of an operation that has not ended.
    limit
        Launches that may be outstanding.
    begin
        Its clock at first (s).
    noise
        A factor on each host cost, shape (steps * operations,).
    """

    def __init__(
        self,
        env: simpy.Environment,
        program: Program,
        launch: list[float],
        start: list[float],
        end: list[float],
        ended: Callable[[int], simpy.Event],
        limit: int,
        begin: float = 0.0,
        noise: Sequence[float] | None = None,
    ) -> None:
        self.env, self.ended = env, ended
        self.launch, self.start, self.end = launch, start, end
        self.limit, self.noise = limit, noise
        self.issued = 0  # operations whose launch is decided
        self._begin, self._program = begin, program
        self._cost = program.host.tolist()
        self._sync = (program.kind == SYNC).tolist()
        self._awaits = -1  # operation for whose end it waits
        # Events of operations that streams wait to be issued, and the event of the next such request.
        self._requests: dict[int, simpy.Event] = {}
        self._request = env.event()

    @property
    def blocked(self) -> bool:
        """Whether the thread cannot go on now."""
        return self._awaits >= 0 and self.end[self._awaits] < 0

    def issue(self, g: int) -> simpy.Event:
        """Event of operation `g` being issued, which has not been yet; wakes the thread."""
        event = self._requests[g] = self.env.event()
        if not self._request.triggered:
            self._request.succeed()
        return event

    def run(self) -> Generator[simpy.Event, None, None]:
        """The SimPy process: issues every operation of all steps."""
        launch, end, cost, noise = self.launch, self.end, self._cost, self.noise
        n, clock = len(cost), self._begin
        for g in range(len(launch)):
            i, queued = g % n, g - self.limit
            if queued >= 0:
                while end[queued] < 0:
                    yield self._room(queued, self._sync[i])
                clock = max(clock, end[queued])
            launched = clock + (cost[i] if noise is None else cost[i] * noise[g])
            if self._sync[i]:
                yield from self._synchronize(g, launched)
                clock = end[g]
            else:
                clock = launched
            launch[g] = launched
            self.issued = g + 1
            if self._requests and g in self._requests:
                self._requests.pop(g).succeed()

    def _room(self, queued: int, is_sync: bool) -> simpy.Event:
        """Waits while the launch queue is full, at least until operation `queued` has ended.

        A thread that went on with every kernel that ends would take an event for each. As launch times follow from ends
        that are known, it sleeps until half of the queue is free, or enough for the next operation that a stream waits
        for. Another request wakes it.
        """
        self._awaits = queued
        requests = [g - self.limit for g in self._requests]
        last = min([queued + self.limit // 2, *requests])
        if is_sync or last <= queued or self.end[last] >= 0:
            return self.ended(queued)
        if self._request.triggered:
            self._request = self.env.event()
        return self.ended(last) | self._request

    def _synchronize(self, g: int, begin: float) -> Generator[simpy.Event, None, None]:
        """Waits from `begin` on until what synchronisation `g` waits for has ended."""
        awaited, end = self._awaited(g), self.end
        for self._awaits in awaited:
            if end[self._awaits] < 0:
                yield self.ended(self._awaits)
        self.start[g] = begin
        end[g] = max([begin, *(end[a] for a in awaited)])

    def _awaited(self, g: int) -> list[int]:
        """The operations that synchronisation `g` waits for, counted over steps."""
        i = g % len(self._cost)
        return [g - i + d for d in self._program.deps[i] if g - i + d >= 0]
