"""Executes an operation graph on a cluster: every stream and every host thread is a SimPy process.

A GPU operation starts when the host has launched it, its stream is free and the operations it depends
on have ended. A communication starts when every rank has arrived, after waiting for free SMs, and then
moves its bytes through the fluid network; while it runs it takes SMs and memory bandwidth from kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from prestep.sim import progress
from prestep.sim.costs.power import Meter
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.execution import Run, Timed
from prestep.sim.engine.fluid import Network
from prestep.sim.engine.rank import Rank, ended
from prestep.sim.engine.rendezvous import Meetings
from prestep.sim.engine.steady import rounds as steady_rounds
from prestep.sim.engine.streams import Stream, streams_of
from prestep.sim.errors import PrestepError
from prestep.sim.extras import lazily
from prestep.sim.graph.opgraph import KERNEL, Program
from prestep.sim.tools.process import with_room

with lazily():
    from prestep.sim.engine import stuck

__all__ = ["Engine", "Run", "Stuck", "Timed", "execute", "execute_together"]


# A power budget falls if a step leaves less of it than the step before by more than this share of all of it: far above
# the rounding of sums, far below what moves a step (guess).
LESS = 1e-6


class Stuck(PrestepError):
    """Nothing can happen any more although operations are left; the message shows the wait-for cycle."""


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
        self.network = network or Network(Clock(), timed.bandwidth)
        self.env = self.network.env
        # Remembered for this run: the same few kernels and channels come again and again.
        self.slowdown = cache(timed.slowdown)
        self.ranks = [self._rank(program, start) for program in timed.graph.programs]
        self.meetings = Meetings(timed, self.network)
        for transfer in timed.background:
            self.network.begin(transfer)
        for rank in self.ranks:
            self.env.process(rank.host.run())
        for rank in self.ranks:
            self._start(rank, start)

    def _rank(self, program: Program, start: float) -> Rank:
        """A rank whose host thread begins at `start` s."""
        noise, limit = self.timed.noise, self.graph.launch_limit
        launches = None if noise is None else noise.launches[program.rank]
        env, steps = self.env, self.steps
        return Rank(env, program, steps, self.slowdown, limit, start, launches)

    def _start(self, rank: Rank, start: float) -> None:
        """Starts a rank's streams, and counts its power from `start` s on."""
        timed, number = self.timed, rank.program.rank
        limit = timed.limit_of(number)
        meter = None
        if limit is not None:
            is_spent = timed.in_run or number in timed.spent
            left = limit.power.spent if is_spent else limit.power.budget
            meter = Meter(limit.power, left, start)
        for stream, ops in streams_of(rank.program).items():
            executor = Stream(
                rank, stream, ops, timed, self.slowdown, meter, self.meetings
            )
            self.env.process(executor.run(self.steps))

    def run(self) -> None:
        """Runs until nothing is left to happen."""
        self.env.run()
        self.check()

    def check(self) -> None:
        """Raises Stuck if operations are left though nothing can happen any more."""
        if any(end < 0 for rank in self.ranks for end in rank.end):
            raise Stuck(stuck.explain(self.graph, self.ranks, self.meetings.opened))


@with_room
def execute(timed: Timed, steps: int = 3) -> Run:
    """Runs ``steps`` training steps back to back; where power budgets fall from step to step, with spent ones.

    Raises
    ------
    Stuck
        If operations wait for each other in a cycle or for a peer that never arrives.
    """
    run = _by_rounds(timed, steps)
    falling = _falling(timed, run)
    return _by_rounds(replace(timed, spent=falling), steps) if falling else run


def _falling(timed: Timed, run: Run) -> frozenset[int]:
    """Ranks whose power budget is lower after the last step than after the one before it.

    A run begins with full budgets. Where a step spends more than it fills again, they fall from step to step, and
    products are slowed once nothing is left: after a few steps, or after hundreds. From an empty budget the same state
    is reached within a step.

    None of a run of one step, nor of one whose budgets were given: chains, and runs from spent ones.
    """
    if run.steps < 2 or timed.in_run or timed.spent:
        return frozenset()
    ranks = set()
    for program, left in zip(timed.graph.programs, run.budget, strict=True):
        limit = timed.limit_of(program.rank)
        kernels = np.flatnonzero(program.kind == KERNEL)
        if limit is None or not len(kernels):
            continue
        before, last = left[-2:, kernels[-1]]
        if last < before - LESS * limit.power.budget:
            ranks.add(program.rank)
    return frozenset(ranks)


def _by_rounds(timed: Timed, steps: int) -> Run:
    """With fewer rounds of microbatches where they are all the same."""
    run = steady_rounds.executed(timed, steps, execute_all)
    return execute_all(timed, steps) if run is None else run


def execute_all(
    timed: Timed, steps: int = 3, watch: steady_rounds.Watch | None = None
) -> Run:
    """From full power budgets, with every step and round executed though it is like the one before."""
    engine = Engine(timed, steps)
    if watch is not None:
        watch(engine.ranks)
    with progress.watch("executing", lambda: ended(engine.ranks)):
        engine.run()
    return _run_of(engine)


@with_room
def execute_together(jobs: Sequence[tuple[Timed, int, float]]) -> tuple[Run, ...]:
    """Runs several graphs on one network: (graph with its times, steps, start of the first step in seconds) each.

    What the links carried, the events and the solutions are those of all jobs together.

    Raises
    ------
    Stuck
        If operations of a job wait for each other in a cycle or for a peer that never arrives.
    """
    env = Clock()
    network = Network(env, jobs[0][0].bandwidth)
    engines = [Engine(timed, steps, network, start) for timed, steps, start in jobs]
    with progress.watch(
        "executing",
        lambda: ended([rank for engine in engines for rank in engine.ranks]),
    ):
        engines[0].run()
    for engine in engines[1:]:
        engine.check()
    return tuple(map(_run_of, engines))


def _run_of(engine: Engine) -> Run:
    """What a run that has ended leaves behind."""
    ranks, network = engine.ranks, engine.network

    def column(name: str) -> tuple[np.ndarray, ...]:
        steps = engine.steps
        columns = [np.array(getattr(rank, name)) for rank in ranks]
        return tuple(one.reshape(steps, one.size // steps) for one in columns)

    return Run(
        launch=column("launch"),
        start=column("start"),
        end=column("end"),
        budget=column("budget"),
        ready=tuple(rank.ready for rank in ranks),
        exposed=tuple(rank.exposed for rank in ranks),
        plans=engine.timed.plans,
        bytes=network.bytes,
        traffic=network.traffic,
        events=engine.env.events,
        solves=network.solves,
        # Not the clock's last event: the network may have waited for an end that came earlier.
        finished=max((max(rank.end) for rank in ranks if rank.end), default=0.0),
    )
