"""A stream of a simulated rank: its operations one after the other, as host, dependencies and power allow."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import simpy

from prestep.sim.costs.power import Meter
from prestep.sim.engine.clock import LATE, LATER
from prestep.sim.engine.execution import Timed
from prestep.sim.engine.rank import ROUNDING, Rank, Running
from prestep.sim.engine.rendezvous import Meetings
from prestep.sim.extras import lazily
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Program

with lazily():
    from prestep.sim.engine import chain_run

# A stream that waits for more than so many gaps between kernels rests: transfers have the memory to themselves.
PAUSE = 3


def streams_of(program: Program) -> dict[int, list[int]]:
    """The operations of every stream of a program, in their order."""
    executed = program.kind != SYNC
    return {
        int(stream): np.flatnonzero((program.stream == stream) & executed).tolist()
        for stream in np.unique(program.stream[executed])
    }


class _Operation(NamedTuple):
    """An operation of a stream, at a place of its program; `duration`, `gap` and `latency` in seconds."""

    at: int
    kind: int
    payload: int
    duration: float
    deps: tuple[int, ...]
    gap: float
    latency: float


class Stream:
    """One stream of a rank; ``env.process(stream.run(steps))`` executes its operations.

    Parameters
    ----------
    rank, number, ops
        Whose stream it is, which one, and its operations in their order.
    timed
        How long everything takes.
    slowdown
        That of `timed`, with its answers remembered.
    meter
        What is left of the GPU's power budget; None: no limit.
    meetings
        Where ranks meet to communicate.
    """

    def __init__(
        self,
        rank: Rank,
        number: int,
        ops: list[int],
        timed: Timed,
        slowdown: Callable[[int, int], float],
        meter: Meter | None,
        meetings: Meetings,
    ) -> None:
        program = rank.program
        self.rank, self.number, self.ops = rank, number, ops
        self.timed, self.slowdown = timed, slowdown
        self.meter, self.meetings = meter, meetings
        limit = timed.limit_of(program.rank)
        self.loads = () if limit is None else limit.loads
        self.timelines = timed.timelines.get(program.rank, {})
        self.noise = None if timed.noise is None else timed.noise.kernels[program.rank]

    def run(self, steps: int) -> Generator[simpy.Event, None, None]:
        """The SimPy process: waits for what each operation needs, then starts it, then waits for its end."""
        rank, env, host = self.rank, self.rank.env, self.rank.host
        n = len(rank.program)
        operations = self._operations()
        for base in range(0, steps * n, max(1, n)):
            for op in operations:
                g = base + op.at
                if host.issued <= g or op.deps:
                    while (awaited := self._awaited(base, g, op.deps)) is not None:
                        yield awaited
                # The gap after the last operation, or longer if the launch comes later.
                pause, launched = op.gap, rank.launch[g] + op.latency
                if env.now + pause < launched:
                    pause = self._until(launched, pause)
                if not env.skip(pause):
                    yield self._after(pause, op)
                if op.kind == KERNEL:
                    end = self._begin(g, op.payload, op.duration)
                    if end is not None:
                        yield end
                    if op.payload not in self.timed.idle:
                        self._stop(g, op.payload)
                elif op.kind == COMM:
                    yield from self._communicate(g, op.payload)
                rank.finish(g, env.now)
        rank.rest(self.number)  # for good: no kernel of it comes beside transfers

    def _awaited(self, base: int, g: int, deps: tuple[int, ...]) -> simpy.Event | None:
        """What operation `g` still waits for: its launch, or another operation's end."""
        rank = self.rank
        if rank.host.issued <= g:
            if rank.host.blocked:
                rank.rest(self.number)
            return rank.host.issue(g)
        for d in deps:
            before = base + d
            if before >= 0 and rank.end[before] < 0:
                rank.rest(self.number)
                return rank.ended(before)
        return None

    def _until(self, launched: float, gap: float) -> float:
        """Seconds until a launch takes effect, for which the stream rests if that is longer than a few gaps."""
        now: float = self.rank.env.now
        if now + PAUSE * gap < launched:
            self.rank.rest(self.number)
        return launched - now

    def _after(self, pause: float, op: _Operation) -> simpy.Event:
        """Returns the event that ends a pause.

        Of operations that could start at the same time, kernels take the SMs before communications, and those of
        `Timed.yielding` after them.
        """
        env = self.rank.env
        if op.kind == COMM:
            return env.after(pause, LATE)
        is_last = op.kind == KERNEL and op.payload in self.timed.yielding
        return env.after(pause, LATER) if is_last else env.timeout(pause)

    def _begin(self, g: int, kernel: int, time: float) -> simpy.Event | None:
        """Starts operation `g`, a kernel of `time` s alone; its end, or None if it ends at once."""
        rank, env, timed = self.rank, self.rank.env, self.timed
        now = rank.start[g] = env.now
        if self.noise is not None:
            time *= self.noise[g]
        if kernel in timed.idle:
            rank.rest(self.number)
            return env.timeout(time)
        contention = timed.beside.get(kernel, timed.contention)
        if rank.working.get(self.number) != contention:
            rank.work(self.number, contention)
        if kernel in timed.grain:
            rank.grains[self.number] = timed.grain[kernel]
        longer = self.slowdown(kernel, rank.channels) if rank.channels else 1.0
        if self.meter is not None:
            # Alone, at the clock that the power limit allows; communication beside it comes on top.
            time = self.meter.run(now, time * longer, self.loads[kernel]) / longer
            rank.budget[g] = self.meter.left
        if time <= ROUNDING:
            return None
        speed = 1.0 / longer
        if kernel not in self.timelines and env.skip(time / speed):
            return None
        end = env.timeout(time / speed)
        running = self._running(end, kernel, time, speed)
        rank.running[self.number] = running
        return running.end

    def _running(
        self, end: simpy.Event, kernel: int, time: float, speed: float
    ) -> Running:
        """A kernel of `time` s that begins now; one that moves bytes does so on the network."""
        timeline, of = self.timelines.get(kernel), (end, kernel, time, speed)
        if timeline is None:
            return Running(self.rank.env, *of)
        return chain_run.ChainRun(*of, timeline, self.meetings.network)

    def _communicate(self, g: int, batch: int) -> Generator[Any, Any, None]:
        """Meets the other ranks for operation `g`, a batch of communications, and waits for its end.

        A stream runs no kernels beside its own communication.
        """
        program = self.rank.program
        self.rank.rest(self.number)
        step, comms = g // len(program), program.parts[batch]
        return self.meetings.communicate(self.rank, g, step, comms)

    def _stop(self, g: int, kernel: int) -> None:
        """The kernel that operation `g` ran has ended: its SMs are free."""
        running = self.rank.running.pop(self.number, None)
        if running is not None and kernel in self.timelines:
            self.rank.exposed[g] = running.leave()  # type: ignore[attr-defined]
        self.rank.free_sms(self.number)

    def _operations(self) -> list[_Operation]:
        """The stream's operations with what is known of them before they run."""
        program, timed, ops = self.rank.program, self.timed, self.ops
        columns = (
            program.kind[ops].tolist(),
            program.payload[ops].tolist(),
            self._durations(),
            [program.deps[i] for i in ops],
            _column(program.gap, timed.kernel_gap, ops),
            _column(program.latency, timed.launch_latency, ops),
        )
        return list(map(_Operation._make, zip(ops, *columns, strict=True)))

    def _durations(self) -> list[float]:
        """Seconds of the stream's kernels on this rank (0 for communication): not of all kernels of the graph."""
        program = self.rank.program
        scale = self.timed.scale.get(program.rank, 1.0)
        times = np.append(self.timed.durations * scale, 0.0)
        is_kernel = program.kind[self.ops] == KERNEL
        kernels = np.where(is_kernel, program.payload[self.ops], -1)
        return times[kernels].tolist()  # type: ignore[no-any-return]


def _column(values: np.ndarray | None, default: float, ops: list[int]) -> list[float]:
    """What a column of a program says of some operations."""
    return [default] * len(ops) if values is None else values[ops].tolist()
