"""The last of several steps from the one before it, where nothing differs between them: it need not be executed.

A run of one step less is executed. Its last step would come again, so much later, where all that it began with is there
again when it ends: what was under way then on every stream and link, what was left of the power budgets, and how far
the host thread was ahead. The first steps need not be like the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.engine.execution import Run, Timed
from prestep.sim.engine.steady.traffic import once_more
from prestep.sim.engine.steady.waits import Lead, free_of_earlier, launched
from prestep.sim.engine.steady.window import BEFORE, SAME, Uneven, same, streams
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Program

# Of fewer steps the last one is like none before it.
FEWEST = 3
# Below so many operations nothing is gained.
MANY = 100


def repeats(timed: Timed, steps: int) -> bool:
    """Whether it is worth a try to leave out the last step."""
    graph, drawn = timed.graph, timed.noise is not None
    if steps < FEWEST or graph.operations < MANY or drawn or timed.background:
        return False
    if any(map(_ends_with_communication, graph.programs)):
        return False
    return len(graph.programs) == 1 or not any(
        _waits_for_host(timed, program) for program in graph.programs
    )


def _ends_with_communication(program: Program) -> bool:
    """Whether communication runs on into the next step: after the last step it runs beside nothing, and is faster."""
    return bool((program.kind[-1:] == COMM).any())


def _waits_for_host(timed: Timed, program: Program) -> bool:
    """Whether a rank's host thread takes longer than its kernels.

    Of several such ranks now one and now another one is late: their steps are rarely the same.
    """
    kernels = program.payload[program.kind == KERNEL]
    return float(program.host.sum()) > float(timed.durations[kernels].sum())


def with_last(timed: Timed, run: Run) -> Run | None:
    """A run with one step more, like its last one; None where that might go otherwise."""
    try:
        return _Longer(timed, run).run()
    except Uneven:
        return None


class _Columns(NamedTuple):
    """What is known of a rank's operations: seconds, of shape (steps, operations)."""

    launch: np.ndarray
    start: np.ndarray
    end: np.ndarray
    budget: np.ndarray


class _Longer:
    """A run that is to be one step longer.

    Attributes
    ----------
    begin
        Second at which the first operation of the last step starts, on any rank.
    length
        Seconds from then until that of the step after it would start.
    """

    def __init__(self, timed: Timed, run: Run) -> None:
        self.timed, self.short = timed, run
        self.tolerance = SAME * max(run.finished, 1e-3)
        self.programs = timed.graph.programs
        columns = zip(run.launch, run.start, run.end, run.budget, strict=True)
        self.columns = [_Columns(*mine) for mine in columns]
        ends = [max(float(one.end[k].max()) for one in self._any()) for k in (-2, -1)]
        self.length = ends[1] - ends[0]
        self.begin = min(
            float(one.start[-1][program.kind != SYNC].min(initial=np.inf))
            for program, one in zip(self.programs, self.columns, strict=True)
        )

    def _any(self) -> list[_Columns]:
        """The columns of ranks that have operations."""
        return [one for one in self.columns if one.end.size]

    def run(self) -> Run:
        """Raises Uneven where the step after the last one may go otherwise."""
        short = self.short
        for program, mine in zip(self.programs, self.columns, strict=True):
            self._same_end(program, mine)
        traffic = once_more(short.traffic, self.begin - BEFORE, self.length)
        if traffic is None:
            raise Uneven
        longer = [
            self._longer(program, mine)
            for program, mine in zip(self.programs, self.columns, strict=True)
        ]
        launch, start, end, budget = (tuple(c) for c in zip(*longer, strict=True))
        more = (short.steps + 1) / short.steps
        everywhere, copies = short.everywhere
        return Run(
            launch=launch,
            start=start,
            end=end,
            budget=budget,
            ready=tuple(map(self._ready, self.programs, short.ready)),
            exposed=tuple(map(self._exposed, self.programs, short.exposed)),
            plans=short.plans,
            carried=short.carried * more,
            everywhere=(everywhere * more, copies),
            data=(short.data[0] * more, short.data[1] * more),
            traffic=traffic,
            events=short.events,
            solves=short.solves,
            finished=short.finished + self.length,
        )

    # -- whether the last step ends as the one before it ----------------------------------------------
    def _same(self, before: Any, last: Any) -> None:
        same(before, last, self.tolerance)

    def _same_end(self, program: Program, mine: _Columns) -> None:
        """What is under way at the begin of the last step, and what the first operations of the next one wait for."""
        under_way = mine.end[-2] > self.begin
        kernels = program.kind == KERNEL
        for ops in streams(program).values():
            if kernels[ops].any():
                under_way[ops[-1]] = True
                self._same_budget(mine, ops[kernels[ops]][-1])
        self._same(mine.end[-2][under_way] + self.length, mine.end[-1][under_way])
        under_way[program.kind == SYNC] = False
        self._same(mine.start[-2][under_way] + self.length, mine.start[-1][under_way])
        last, following = mine.end[[-2, -1]], mine.end[[-1, -1]]
        following[0] -= self.length
        self._same(free_of_earlier(program, last), free_of_earlier(program, following))

    def _same_budget(self, mine: _Columns, kernel: int) -> None:
        """As much of the power budget is left after a kernel."""
        self._same(mine.budget[-2, kernel], mine.budget[-1, kernel])

    # -- the step after the last one ------------------------------------------------------------------
    def _longer(self, program: Program, mine: _Columns) -> _Columns:
        """With the step after the last one, which the host thread has to launch as early as the last one."""
        start, end = (_with_last(one, self.length) for one in (mine.start, mine.end))
        limit, latency = self.timed.graph.launch_limit, self.timed.launch_latency
        last = Lead.of(program, latency, mine.launch, mine.start, mine.end)
        launch, start = launched(
            program, limit, start, end, self.tolerance, mine.launch
        )
        last.same(launch[-1] - self.length, self.tolerance)
        return _Columns(launch, start, end, _with_last(mine.budget, 0.0))

    def _ready(self, program: Program, ready: Mapping[int, float]) -> dict[int, float]:
        last, n = (self.short.steps - 1) * len(program), len(program)
        later = {g + n: at + self.length for g, at in ready.items() if g >= last}
        return {**ready, **later}

    def _exposed(
        self, program: Program, exposed: Mapping[int, Mapping[str, float]]
    ) -> dict[int, Mapping[str, float]]:
        last, n = (self.short.steps - 1) * len(program), len(program)
        return {**exposed, **{g + n: one for g, one in exposed.items() if g >= last}}


def _with_last(times: np.ndarray, later: float) -> np.ndarray:
    """A column with its last step once more, so many seconds later."""
    return np.concatenate([times, times[-1:] + later])
