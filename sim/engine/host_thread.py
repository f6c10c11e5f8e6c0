"""The host thread of a rank: issues operations in program order, ahead of the GPU up to a limit.

When it issues an operation follows from what has ended before. So it has no events of its own: whoever needs an
operation has it go on as far as is known by then, and waits for what it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.graph.opgraph import SYNC, Program


class HostThread:
    """Computes launch times; waits only where the real thread would.

    The thread blocks when ``limit`` launches are outstanding (the CUDA launch queue is full) and at
    explicit synchronisations. Between those its clock adds up host costs.

    Parameters
    ----------
    program
        What it issues, so many times.
    launch, start, end
        Seconds of every operation, counted over steps; an end is negative until it is known. Launches are written here,
        and starts and ends of synchronisations.
    limit
        Launches that may be outstanding.
    begin
        Its clock at first (s).
    noise
        A factor on each host cost, shape (steps * operations,).
    """

    __slots__ = (
        "_clock",
        "_cost",
        "_program",
        "_sync",
        "end",
        "issued",
        "launch",
        "limit",
        "noise",
        "start",
    )

    def __init__(
        self,
        program: Program,
        launch: list[float],
        start: list[float],
        end: list[float],
        limit: int,
        begin: float = 0.0,
        noise: Sequence[float] | None = None,
    ) -> None:
        self.launch, self.start, self.end = launch, start, end
        self.limit, self.noise = limit, noise
        self.issued = 0  # operations whose launch is decided
        self._clock, self._program = begin, program
        self._cost = program.host.tolist()
        self._sync = (program.kind == SYNC).tolist()

    def awaits(self, g: int) -> int:
        """An operation that has to end before the host issues operation `g`; -1: it has issued it."""
        blocked = self.advance()
        if self.issued > g:
            return -1
        # The host waits for this one too, most often last; synchronisations end when it goes on.
        queued = g - self.limit
        reached = (
            queued < 0 or self.end[queued] >= 0 or self._sync[queued % len(self._sync)]
        )
        return blocked if reached else queued

    def advance(self) -> int:
        """Issues what it can by now; the operation whose end it waits for then, -1 once all are issued."""
        launch, end, cost, noise = self.launch, self.end, self._cost, self.noise
        n, clock = len(cost), self._clock
        blocked = -1
        for g in range(self.issued, len(launch)):
            queued, i = g - self.limit, g % n
            if queued >= 0:
                if end[queued] < 0:
                    blocked = queued
                    break
                clock = max(clock, end[queued])
            launched = clock + (cost[i] if noise is None else cost[i] * noise[g])
            if self._sync[i]:
                blocked = self._unfinished(g)
                if blocked >= 0:
                    break
                self.start[g] = launched
                self.end[g] = clock = self._synchronized(g, launched)
            else:
                clock = launched
            launch[g] = launched
            self.issued = g + 1
            self._clock = clock
        return blocked

    def _awaited(self, g: int) -> list[int]:
        """The operations that synchronisation `g` waits for, counted over steps."""
        i = g % len(self._cost)
        return [g - i + d for d in self._program.deps[i] if g - i + d >= 0]

    def _unfinished(self, g: int) -> int:
        """The first operation that synchronisation `g` waits for still; -1: none."""
        return next((a for a in self._awaited(g) if self.end[a] < 0), -1)

    def _synchronized(self, g: int, clock: float) -> float:
        """When the thread goes on (s) that begins to wait for synchronisation `g` at `clock`."""
        return max([clock, *(self.end[a] for a in self._awaited(g))])
