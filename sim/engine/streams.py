"""A stream of a simulated rank: its operations one after the other, as host, dependencies and power allow."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from sim.costs.power import Meter
from sim.engine.execution import Timed
from sim.engine.meetings import Meetings
from sim.engine.rendezvous import ROUNDING, Rank, Running
from sim.graph.opgraph import COMM, KERNEL, SYNC, Program

# A stream that waits for more than so many gaps between kernels rests: transfers have the memory to themselves.
PAUSE = 3


def streams_of(program: Program) -> dict[int, list[int]]:
    """The operations of every stream of a program, in their order."""
    executed = program.kind != SYNC
    return {
        int(stream): np.flatnonzero((program.stream == stream) & executed).tolist()
        for stream in np.unique(program.stream[executed])
    }


class Stream:
    """One stream of a rank; `process` is what SimPy runs.

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
        self.rank, self.number, self.ops = rank, number, ops
        self.timed, self.slowdown = timed, slowdown
        self.meter, self.meetings = meter, meetings

    def process(self, steps: int) -> Generator[Any, Any, None]:
        """Runs the operations of all steps. The loop is flat, as every call counts at a kernel a microsecond."""
        rank, stream, timeout = self.rank, self.number, self.rank.env.timeout
        program, n = rank.program, len(rank.program)
        kind, payload = program.kind.tolist(), program.payload.tolist()
        duration, noise, idle = self._durations(), self._noise(), self.timed.idle
        gaps = _column(program.gap, self.timed.kernel_gap, n)
        latencies = _column(program.latency, self.timed.launch_latency, n)
        for base in range(0, steps * n, max(1, n)):
            for place, i in enumerate(self.ops):
                g = base + i
                while rank.issued <= g:
                    rank.rest(stream)
                    yield rank.issue()
                for d in program.deps[i]:
                    if base + d >= 0 and rank.end[base + d] < 0:
                        rank.rest(stream)
                        yield rank.ended(base + d)
                yield timeout(self._pause(gaps[i], rank.launch[g] + latencies[i]))
                if kind[i] == KERNEL:
                    rank.start[g] = rank.env.now
                    time = duration[place]
                    if noise is not None:
                        time *= noise[g]
                    if payload[i] in idle:
                        rank.rest(stream)
                        yield timeout(time)
                    else:
                        running = self._begin(payload[i], time)
                        if running is not None:
                            yield running.end
                            del rank.running[stream]
                        rank.free_sms(stream)
                elif kind[i] == COMM:
                    comms = program.parts[payload[i]]
                    yield from self.meetings.communicate(rank, g, base // n, comms)
                rank.finish(g, rank.env.now)

    def _pause(self, gap: float, launched: float) -> float:
        """Seconds until the next operation starts: the gap after the last one, or longer if its launch comes later."""
        now = self.rank.env.now
        if now + gap >= launched:
            return gap
        if now + PAUSE * gap < launched:
            self.rank.rest(self.number)
        return launched - now

    def _begin(self, kernel: int, time: float) -> Running | None:
        """Starts a kernel that takes `time` s alone; None if that is no longer than a rounding error."""
        rank, stream, timed = self.rank, self.number, self.timed
        contention = timed.beside.get(kernel, timed.contention)
        if rank.working.get(stream) != contention:
            rank.work(stream, contention)
        if kernel in timed.grain:
            rank.grains[stream] = timed.grain[kernel]
        if self.meter is not None:
            time = self._at_power(self.meter, kernel, time)
        if time <= ROUNDING:
            return None
        env, channels = rank.env, rank.channels
        speed = 1.0 / self.slowdown(kernel, channels) if channels else 1.0
        running = Running(env.timeout(time / speed), kernel, time, env.now, speed)
        rank.running[stream] = running
        return running

    def _at_power(self, meter: Meter, kernel: int, duration: float) -> float:
        """Seconds of a kernel alone at the clock that the power limit allows; communication beside it comes on top."""
        now, channels = self.rank.env.now, self.rank.channels
        longer = self.slowdown(kernel, channels) if channels else 1.0
        if kernel in self.timed.hot:
            return meter.product(now, duration * longer) / longer
        meter.other(now, duration * longer)
        return duration

    def _durations(self) -> list[float]:
        """Seconds of the stream's kernels on this rank (0 for communication): not of all kernels of the graph."""
        program = self.rank.program
        scale = self.timed.scale.get(program.rank, 1.0)
        times = np.append(self.timed.durations * scale, 0.0)
        is_kernel = program.kind[self.ops] == KERNEL
        kernels = np.where(is_kernel, program.payload[self.ops], -1)
        return times[kernels].tolist()  # type: ignore[no-any-return]

    def _noise(self) -> list[float] | None:
        """Factors on the times of this rank's kernels, by operation counted over steps."""
        noise = self.timed.noise
        return None if noise is None else noise.kernels[self.rank.program.rank]


def _column(values: np.ndarray | None, default: float, length: int) -> list[float]:
    return [default] * length if values is None else values.tolist()
