"""The whole run from one with fewer rounds, where they are all the same: see `prestep.sim.engine.steady.rounds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from prestep.sim.engine.execution import Run, Timed
from prestep.sim.engine.steady.traffic import extended
from prestep.sim.engine.steady.waits import launched, waits
from prestep.sim.engine.steady.window import HOST, SAME, Uneven, Window, same, streams
from prestep.sim.engine.traffic import LinkBytes, Traffic
from prestep.sim.graph.opgraph import COMM, KERNEL, Program
from prestep.sim.graph.rounds import Shortened

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan

T = TypeVar("T")


class _Places(NamedTuple):
    """Which operation of the short run each one of a rank's step is like, and how many seconds later it comes."""

    like: np.ndarray
    later: np.ndarray


class Extended:
    """A short run with the rounds that were left out.

    Parameters
    ----------
    run
        Of the shortened graph.
    """

    def __init__(self, timed: Timed, short: Shortened, run: Run) -> None:
        self.timed, self.short, self.short_run = timed, short, run
        self.tolerance = SAME * max(run.finished, 1e-3)
        self.windows = [
            Window.of(short, [one[step] for one in run.start], self.tolerance)
            for step in range(run.steps)
        ]
        # Seconds by which all is later after the window of each step.
        self.added = [short.left_out * window.length for window in self.windows]

    def run(self) -> Run:
        """Raises Uneven where the whole run may have gone otherwise."""
        run, ranks = self.short_run, range(len(self.timed.graph.programs))
        places = [[self._places(r, s) for s in range(run.steps)] for r in ranks]
        end = tuple(_moved(run.end[r], places[r]) for r in ranks)
        launch, start = self._begun(places, end)
        for r in ranks:
            self._same_waits(r, places[r], (launch[r], start[r], end[r]))
        self._same_meetings(places, start)
        return replace(
            run,
            launch=launch,
            start=start,
            end=end,
            plans=self.timed.plans,
            bytes=self._bytes(),
            traffic=self._traffic(),
            finished=max((float(e.max()) for e in end if e.size), default=0.0),
            **self._of_ranks(places),
        )

    def _of_ranks(self, places: list[list[_Places]]) -> dict[str, Any]:
        """When peers had arrived, waits for exchanges within chains, and power budgets, by rank."""
        # Budgets are levels, not times: they come later without growing.
        levels = [[_Places(p.like, 0.0 * p.later) for p in mine] for mine in places]
        pairs = zip(self.short_run.budget, levels, strict=True)
        return {
            "ready": tuple(self._ready(r, mine) for r, mine in enumerate(places)),
            "exposed": tuple(self._exposed(r, mine) for r, mine in enumerate(places)),
            "budget": tuple(_moved(budget, mine) for budget, mine in pairs),
        }

    def _begun(
        self, places: list[list[_Places]], end: Sequence[np.ndarray]
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """When every operation was launched, and when it started, by rank."""
        pairs = [
            self._launches(r, _moved(self.short_run.start[r], mine), end[r])
            for r, mine in enumerate(places)
        ]
        return tuple(issued for issued, _ in pairs), tuple(begun for _, begun in pairs)

    def _traffic(self) -> Traffic:
        """Rates over time, with the rounds that were left out."""
        windows = [(one.begin, one.begin + one.length) for one in self.windows]
        traffic = extended(
            self.short_run.traffic, windows, self.short.left_out, self.tolerance
        )
        if traffic is None:
            raise Uneven
        return traffic

    def _bytes(self) -> LinkBytes:
        """Bytes of every link with the rounds that were left out."""
        run = self.short_run
        sizes: dict[int, tuple[Plan, float]] = {}
        for plan, size in self._left_out():
            _, before = sizes.get(id(plan), (plan, 0.0))
            sizes[id(plan)] = plan, before + run.steps * size
        return replace(run.bytes, moved=(*run.bytes.moved, *sizes.values()))

    def _left_out(self) -> Iterator[tuple[Plan, float]]:
        """Plans, and the bytes that the short run has not moved by them in a step."""
        timed, kept = self.timed, set(self.short.comms)
        for c, plan in enumerate(timed.plans):
            if c not in kept:
                yield plan, plan.size
        for whole, program in zip(
            timed.graph.programs, self.short.graph.programs, strict=True
        ):
            timelines = timed.timelines.get(whole.rank, {})
            for kernel, timeline in timelines.items():
                count = _executions(whole, kernel) - _executions(program, kernel)
                for exchange in timeline.cycle.exchanges:
                    yield exchange.plan, count * timeline.times * exchange.plan.size

    # -- where everything goes ------------------------------------------------------------------------
    def _alone(self, rank: int, step: int) -> None:
        """Nothing of the steps before and after happens in the window and the round before it."""
        run, (begin, _, end) = self.short_run, self.windows[step].edges
        if step and run.end[rank][step - 1].max() > begin:
            raise Uneven
        if step + 1 < run.steps and run.start[rank][step + 1].min() < end:
            raise Uneven

    def _places(self, rank: int, step: int) -> _Places:
        self._alone(rank, step)
        short, length = self.short, self.windows[step].length
        whole, program = self.timed.graph.programs[rank], short.graph.programs[rank]
        like = np.zeros(len(whole), dtype=np.int64)
        later = np.zeros(len(whole))
        old, new = streams(program), streams(whole)
        for stream, ops in old.items():
            begin, end = self._round(rank, step, ops, stream == HOST)
            order, copies = _repeated(len(ops), begin, end, short.left_out)
            if len(new[stream]) != len(order):
                raise Uneven
            like[new[stream]] = ops[order]
            later[new[stream]] = sum(self.added[:step]) + copies * length
        kinds = short.kinds[rank]
        if (kinds != kinds[short.kept[rank]][like]).any():
            raise Uneven
        return _Places(like, later)

    def _round(
        self, rank: int, step: int, ops: np.ndarray, on_host: bool
    ) -> tuple[int, int]:
        """The operations of a stream in the window, from and to.

        When the host thread begins to wait says nothing: `_launches` finds that again.
        """
        run = self.short_run
        end, budget = run.end[rank][step, ops], run.budget[rank][step, ops]
        start = end if on_host else run.start[rank][step, ops]
        return self.windows[step].of_stream(start, end, budget, self.tolerance)

    # -- what the whole run would have done otherwise -------------------------------------------------
    def _launches(
        self, rank: int, start: np.ndarray, end: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Launches as the host thread issues them, and starts; its synchronisations have to end when they did."""
        program, limit = self.timed.graph.programs[rank], self.timed.graph.launch_limit
        return launched(program, limit, start, end, self.tolerance)

    def _same_as(self, one: Any, other: Any) -> None:
        same(one, other, self.tolerance)

    def _same_waits(
        self, rank: int, places: list[_Places], whole: tuple[np.ndarray, ...]
    ) -> None:
        """Operations wait for their streams, for others and for their launches as long as those that they are like."""
        run = self.short_run
        short = run.launch[rank], run.start[rank], run.end[rank]
        latency = self.timed.launch_latency
        now = waits(self.timed.graph.programs[rank], latency, *whole)
        then = waits(self.short.graph.programs[rank], latency, *short)
        for step, (like, _) in enumerate(places):
            now.of(step).same(then.of(step, like), self.tolerance)

    def _same_meetings(
        self, places: list[list[_Places]], start: Sequence[np.ndarray]
    ) -> None:
        """Ranks come to their communications as long after the first as in the short run."""
        run = self.short_run
        whole = [_Entries(p) for p in self.timed.graph.programs]
        short = [_Entries(p) for p in self.short.graph.programs]
        for step in range(run.steps):
            now = _after_first(whole, start, step)
            then = _after_first(short, run.start, step)
            for r, (mine, others) in enumerate(zip(whole, short, strict=True)):
                like = places[r][step].like
                at = others.first[like[mine.op]] + mine.place
                self._same_as(now[r], then[r][at])

    def _ready(self, rank: int, places: list[_Places]) -> dict[int, float]:
        ready = self.short_run.ready[rank]
        return {g: at + later for g, later, at in self._comms(rank, places, ready)}

    def _exposed(
        self, rank: int, places: list[_Places]
    ) -> dict[int, Mapping[str, float]]:
        exposed = self.short_run.exposed[rank]
        return {g: waits for g, _, waits in self._comms(rank, places, exposed)}

    def _comms(
        self, rank: int, places: list[_Places], of: Mapping[int, T]
    ) -> Iterator[tuple[int, float, T]]:
        """What is known of some operations of the short run, for all of the whole one that are like them."""
        n, m = len(self.short.graph.programs[rank]), len(self.short.kinds[rank])
        has_value = np.zeros(n * len(places), dtype=bool)
        has_value[list(of)] = True
        for step, (like, later) in enumerate(places):
            then = like + step * n
            at = np.flatnonzero(has_value[then])
            yield from zip(
                (at + step * m).tolist(),
                later[at].tolist(),
                map(of.__getitem__, then[at].tolist()),
                strict=True,
            )


def _executions(program: Program, kernel: int) -> int:
    """How often a program has a kernel."""
    return int(((program.kind == KERNEL) & (program.payload == kernel)).sum())


def _repeated(
    count: int, begin: int, end: int, times: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers below `count` with a stretch put in again after itself, and how many copies are there by then."""
    stretch = np.arange(begin, end)
    order = np.concatenate(
        [np.arange(end), np.tile(stretch, times), np.arange(end, count)]
    )
    copies = np.concatenate(
        [np.zeros(end), np.repeat(np.arange(1, times + 1), end - begin)]
    )
    return order, np.append(copies, np.full(count - end, float(times)))


def _moved(times: np.ndarray, places: list[_Places]) -> np.ndarray:
    """A column of the short run, for the whole one."""
    return np.array(
        [times[step, like] + later for step, (like, later) in enumerate(places)]
    )


class _Entries:
    """The communications of a program's operations: which operation, the how-manieth of it, and which communication."""

    def __init__(self, program: Program) -> None:
        ops = np.flatnonzero(program.kind == COMM)
        batches = [program.parts[payload] for payload in program.payload[ops].tolist()]
        counts = np.array([len(batch) for batch in batches], dtype=np.int64)
        begins = np.cumsum(counts) - counts
        self.op = np.repeat(ops, counts)
        self.place = np.arange(len(self.op)) - np.repeat(begins, counts)
        self.comm = np.fromiter(chain.from_iterable(batches), np.int64)
        self.first = np.zeros(len(program), dtype=np.int64)
        self.first[ops] = begins


def _after_first(
    entries: list[_Entries], start: Sequence[np.ndarray], step: int
) -> list[np.ndarray]:
    """Seconds by which each rank comes to each communication after the first of all."""
    most = max((int(one.comm.max()) for one in entries if len(one.comm)), default=0)
    first = np.full(most + 1, np.inf)
    for one, mine in zip(entries, start, strict=True):
        np.minimum.at(first, one.comm, mine[step, one.op])
    return [
        mine[step, one.op] - first[one.comm]
        for one, mine in zip(entries, start, strict=True)
    ]
