"""Executes an operation graph on a cluster: one SimPy process per stream and one per host thread.

A GPU operation starts when the host has launched it, its stream is free and the operations it depends
on have ended. A communication starts when every rank has arrived, after waiting for free SMs, and then
moves its bytes through the fluid network; while it runs it takes SMs and memory bandwidth from kernels.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from sim import progress
from sim.costs.power import Meter
from sim.engine import stuck
from sim.engine.execution import Run, Timed
from sim.engine.fluid import Network
from sim.engine.host_thread import host_thread
from sim.engine.rendezvous import Meeting, Rank, Running, ended
from sim.errors import PrestepError
from sim.graph.opgraph import COMM, KERNEL, SYNC

if TYPE_CHECKING:
    from sim.collectives.plan import Plan

__all__ = ["Engine", "Run", "Stuck", "Timed", "execute", "execute_together"]

# Gaps between kernels after which a stream counts as resting, so that transfers have the memory to themselves.
PAUSE = 3


class Stuck(PrestepError):
    """Nothing can happen any more although operations are left; the message shows the wait-for cycle."""


def _column(values: np.ndarray | None, default: float, length: int) -> list[float]:
    return [default] * length if values is None else values.tolist()


class Engine:
    """One run of a graph; see :func:`execute`."""

    def __init__(
        self,
        timed: Timed,
        steps: int,
        network: Network | None = None,
        start: float = 0.0,
    ) -> None:
        self.timed, self.graph, self.steps = timed, timed.graph, steps
        graph = timed.graph
        self.env = simpy.Environment() if network is None else network.env
        self.events = 0
        self.network = (
            Network(self.env, timed.bandwidth) if network is None else network
        )
        self.slowdown = cache(
            timed.slowdown
        )  # of this run: the same few kernels and channels come again and again
        self.ranks = [Rank(self.env, p, steps, self.slowdown) for p in graph.programs]
        power = timed.power
        self.meters = (
            {id(r): Meter(power, timed.budget, start) for r in self.ranks}
            if power is not None
            else {}
        )
        self.plans = timed.plans
        self.parts = {id(plan): _parts(plan) for plan in self.plans}
        self.meetings: dict[tuple[int, int], Meeting] = {}
        for other in timed.background:
            self.network.begin(other)
        for rank in self.ranks:
            late = (
                None if timed.noise is None else timed.noise.launches[rank.program.rank]
            )
            self.env.process(host_thread(rank, steps, graph.launch_limit, start, late))
            executed = rank.program.kind != SYNC
            for stream in np.unique(rank.program.stream[executed]):
                ops = np.flatnonzero(
                    (rank.program.stream == stream) & executed
                ).tolist()
                self.env.process(self._stream(rank, ops, int(stream)))

    def run(self) -> None:
        """Steps through all events: `Environment.step` written out, as a call for each costs a tenth of a run."""
        env, queue, events = self.env, self.env._queue, 0
        while queue:
            env._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
            events += 1
        self.events += events
        self.check()

    def check(self) -> None:
        """Raises Stuck if nothing is left to happen but operations are."""
        left = [(r, g) for r in self.ranks for g in range(len(r.end)) if r.end[g] < 0]
        if left:
            raise Stuck(stuck.explain(self.graph, self.ranks, self.meetings))

    def _stream(
        self, rank: Rank, ops: list[int], stream: int
    ) -> Generator[Any, Any, None]:
        """Runs the operations of a stream one after the other; one function, as every call costs at a kernel a time."""
        env, p, n, timeout = self.env, rank.program, len(rank.program), self.env.timeout
        kind, payload, deps, end, launch = (
            p.kind.tolist(),
            p.payload.tolist(),
            p.deps,
            rank.end,
            rank.launch,
        )
        duration = self._durations(rank, ops)
        gaps = _column(p.gap, self.timed.kernel_gap, n)
        latencies = _column(p.latency, self.timed.launch_latency, n)
        idle, grain, slowdown = self.timed.idle, self.timed.grain, self.slowdown
        beside, usual = self.timed.beside, self.timed.contention
        noise = None if self.timed.noise is None else self.timed.noise.kernels[p.rank]
        working, running = rank.working, rank.running
        for base in range(0, self.steps * n, max(1, n)):
            for place, i in enumerate(ops):
                g = base + i
                while rank.issued <= g:
                    rank.rest(stream)
                    yield rank.issue()
                for d in deps[i]:
                    if base + d >= 0 and end[base + d] < 0:
                        rank.rest(stream)
                        yield rank.ended(base + d)
                gap, begin, now = gaps[i], launch[g] + latencies[i], env.now
                if now + gap < begin:
                    if now + PAUSE * gap < begin:
                        rank.rest(stream)
                    yield timeout(begin - now)
                else:
                    yield timeout(gap)
                if kind[i] == KERNEL:
                    rank.start[g] = env.now
                    time = (
                        duration[place] if noise is None else duration[place] * noise[g]
                    )
                    if payload[i] in idle:
                        rank.rest(stream)
                        yield timeout(time)
                    else:
                        factor = beside.get(payload[i], usual)
                        if working.get(stream) != factor:
                            rank.work(stream, factor)
                        if payload[i] in grain:
                            rank.grains[stream] = grain[payload[i]]
                        left = (
                            self._at_power(rank, payload[i], time)
                            if self.meters
                            else time
                        )
                        if left > 1e-12:
                            speed = (
                                1.0 / slowdown(payload[i], rank.channels)
                                if rank.channels
                                else 1.0
                            )
                            over = timeout(left / speed)
                            running[stream] = Running(
                                over, payload[i], left, env.now, speed
                            )
                            yield over
                            del running[stream]
                        if rank.grains:
                            rank.grains.pop(stream, None)
                        if rank.kernel_end is not None:
                            rank.kernel_end.succeed()
                            rank.kernel_end = None
                elif kind[i] == COMM:
                    yield from self._communicate(
                        rank, g, base // n, p.parts[payload[i]]
                    )
                rank.finish(g, env.now)

    def _durations(self, rank: Rank, ops: list[int]) -> list[float]:
        """Seconds of a stream's kernels on this rank (0 for communication): not of all kernels of the graph."""
        p, scale = rank.program, self.timed.scale.get(rank.program.rank, 1.0)
        times = np.append(self.timed.durations * scale, 0.0)
        return times[np.where(p.kind[ops] == KERNEL, p.payload[ops], -1)].tolist()  # type: ignore[no-any-return]

    def _at_power(self, rank: Rank, kernel: int, duration: float) -> float:
        """Seconds of a kernel alone at the clock that the power limit allows; communication beside it comes on top."""
        meter, now = self.meters[id(rank)], self.env.now
        longer = self.slowdown(kernel, rank.channels) if rank.channels else 1.0
        if kernel in self.timed.hot:
            return meter.product(now, duration * longer) / longer
        meter.other(now, duration * longer)
        return duration

    def _communicate(
        self, rank: Rank, g: int, step: int, parts: tuple[int, ...]
    ) -> Generator[Any, Any, None]:
        """Waits for free SMs, for the peers, and for the bytes."""
        env = self.env
        channels = max((self.plans[c].channels for c in parts), default=0)
        if self.timed.exclusive and rank.running and rank.channels == 0 and rank.grains:
            yield env.timeout(
                max(rank.grains.values())
            )  # one of the many kernels that a chain stands for ends
        elif self.timed.exclusive and rank.running and rank.channels == 0:
            # A kernel that fills the GPU leaves no SM for a communication kernel until its last wave drains.
            if rank.kernel_end is None:
                rank.kernel_end = env.event()
            yield rank.kernel_end
        # Communication kernels of one GPU run one after the other: the next takes over the SMs of the one before.
        while self.timed.exclusive and rank.transferring:
            yield rank.transferring[0].over(rank)
        rank.start[g] = env.now
        rank.hold(channels)
        meetings = []
        for c in parts:
            key = (step, c)
            if key not in self.meetings:
                plan = self._plan_of(step, c)
                self.meetings[key] = Meeting(
                    self.network, plan, self.parts.get(id(plan)) or _parts(plan)
                )
            meeting = self.meetings[key]
            meeting.ranks.append(rank)
            comm = self.graph.comms[c]
            alone = comm.sender == rank.program.rank
            if alone or (comm.sender < 0 and len(meeting.ranks) == comm.arrivals):
                meeting.ready.succeed()
            if self.plans[c].buffered > 0 and any(
                rank.program.rank == group[0] for group in comm.groups
            ):
                meeting.senders.append(rank)
            meetings.append(meeting)
        for meeting in meetings:
            if not meeting.over(rank).triggered:
                yield meeting.over(rank)
        rank.ready[g] = max((m.begin for m in meetings), default=rank.start[g])
        rank.hold(-channels)

    def _plan_of(self, step: int, c: int) -> Plan:
        """A communication's plan in that step: with noise its latency and its bytes take so much longer."""
        plan, noise = self.plans[c], self.timed.noise
        if noise is None:
            return plan
        slow = float(noise.bytes[step, c])
        late = plan.latency * float(noise.latency[step, c])
        return replace(
            plan, latency=late, usage=plan.usage * slow, rate_cap=plan.rate_cap / slow
        )


def _parts(plan: Plan) -> tuple[Plan | None, Plan | None]:
    """What moves while a transfer's sender waits, and what its buffers hold; None: nothing."""
    if plan.buffered <= 0:
        return (plan if plan.size > 0 else None), None
    now = (
        replace(plan, size=plan.size - plan.buffered)
        if plan.size > plan.buffered
        else None
    )
    return now, replace(plan, size=plan.buffered)


def execute(timed: Timed, steps: int = 3) -> Run:
    """Runs ``steps`` training steps back to back.

    Raises
    ------
    Stuck
        If operations wait for each other in a cycle or for a peer that never arrives.
    """
    engine = Engine(timed, steps)
    with progress.watch("executing", lambda: ended(engine.ranks)):
        engine.run()
    return _run_of(engine)


def execute_together(jobs: Sequence[tuple[Timed, int, float]]) -> tuple[Run, ...]:
    """Runs several graphs on one network: (graph with its times, steps, start of the first step in seconds) each.

    What the links carried, the events and the solutions are those of all jobs together.

    Raises
    ------
    Stuck
        If operations of a job wait for each other in a cycle or for a peer that never arrives.
    """
    env = simpy.Environment()
    network = Network(env, jobs[0][0].bandwidth)
    engines = [Engine(timed, steps, network, start) for timed, steps, start in jobs]
    with progress.watch(
        "executing",
        lambda: ended([rank for engine in engines for rank in engine.ranks]),
    ):
        engines[0].run()
    for engine in engines[1:]:
        engine.events = engines[0].events
        engine.check()
    return tuple(map(_run_of, engines))


def _run_of(engine: Engine) -> Run:
    def column(name: str) -> tuple[np.ndarray, ...]:
        return tuple(
            np.array(getattr(r, name)).reshape(engine.steps, len(r.program))
            for r in engine.ranks
        )

    return Run(
        column("launch"),
        column("start"),
        column("end"),
        tuple(r.ready for r in engine.ranks),
        engine.plans,
        engine.network.carried,
        engine.network.traffic,
        engine.events,
        engine.network.solves,
        # Not the clock's last event: the network may have waited for an end that came earlier.
        max((max(r.end) for r in engine.ranks if r.end), default=0.0),
    )
