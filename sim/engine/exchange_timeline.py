"""What a chain repeats, as two lanes: computation, and the exchanges beside it, one after the other.

A chain stands for a layer that is executed once by itself. What it moves over links while it runs follows from that
execution: when each exchange may begin, which computation waits for it, and how long its bytes take on an idle network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.graph.opgraph import Comm

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan


@dataclass(frozen=True)
class Piece:
    """Computation between two marks; seconds from the repetition's begin.

    Attributes
    ----------
    awaited : int
        Exchanges of the repetition that must have ended before it begins.
    """

    begin: float
    end: float
    awaited: int

    @property
    def length(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, eq=False)
class Exchange:
    """A communication of one repetition; seconds from the repetition's begin.

    Attributes
    ----------
    plan : Plan
        Its bytes, at the mean rate that they have on an idle network.
    comm : Comm
    after : int
        Pieces that must have ended before it begins.
    delay : float
        Seconds from then, or from the end of the exchange before it, until its bytes move.
    moves, end : float
        When its bytes begin to move, and when all are there.
    bound : int
        The link that holds it back on an idle network; -1: none.
    """

    plan: Plan
    comm: Comm
    after: int
    delay: float
    moves: float
    end: float
    bound: int


@dataclass(frozen=True, eq=False)
class Cycle:
    """One repetition of a chain on an idle network, `period` seconds from one to the next."""

    pieces: tuple[Piece, ...]
    exchanges: tuple[Exchange, ...]
    period: float

    @cached_property
    def pauses(self) -> tuple[float, ...]:
        """Seconds of waiting before each piece."""
        ends = [0.0, *(piece.end for piece in self.pieces)]
        return tuple(
            max(0.0, piece.begin - end)
            for end, piece in zip(ends, self.pieces, strict=False)
        )

    @cached_property
    def computing(self) -> float:
        """Seconds of computation."""
        return sum(piece.length for piece in self.pieces)

    @cached_property
    def exposed(self) -> dict[str, float]:
        """Seconds in which computation waits for exchanges, by axis."""
        return self.exposed_until(self.period)

    @cached_property
    def waiting(self) -> float:
        """Seconds in which computation waits for exchanges."""
        return sum(self.exposed.values())

    def exposed_until(self, now: float) -> dict[str, float]:
        """The same up to a moment of the repetition."""
        waited: dict[str, float] = {}
        for begin, end in self._waits():
            end = min(end, now)
            for exchange in self.exchanges:
                share = min(end, exchange.end) - begin
                if share > 0:
                    axis = exchange.comm.axis
                    waited[axis] = waited.get(axis, 0.0) + share
                    begin = exchange.end
        return waited

    def _waits(self) -> Iterator[tuple[float, float]]:
        """Begin and end of every pause of the computation."""
        now = 0.0
        for piece in self.pieces:
            if piece.begin > now:
                yield now, piece.begin
            now = piece.end
        if self.period > now:
            yield now, self.period

    @cached_property
    def _peaks(self) -> tuple[np.ndarray, np.ndarray]:
        plans = [exchange.plan for exchange in self.exchanges]
        links = np.unique(np.concatenate([plan.links for plan in plans]))
        peak = np.zeros(len(links))
        for plan in plans:
            at = np.searchsorted(links, plan.links)
            np.maximum.at(peak, at, plan.usage * plan.rate_cap)
        return links, peak

    @property
    def links(self) -> np.ndarray:
        """Links that any of its exchanges uses, ascending."""
        return self._peaks[0]

    @property
    def usage(self) -> np.ndarray:
        """The most bytes/s that any of its exchanges puts on each of them."""
        return self._peaks[1]

    @property
    def data_usage(self) -> np.ndarray:
        """The same: a cycle bounds rates, and its exchanges count what they move."""
        return self.usage


@dataclass(frozen=True, eq=False)
class ExchangeTimeline:
    """A chain that moves bytes: so many repetitions of a cycle, the last without its last kernel of `cut` seconds."""

    cycle: Cycle
    times: int
    cut: float

    @cached_property
    def duration(self) -> float:
        """Seconds on an idle network."""
        return self.times * self.cycle.period - self.cut

    @cached_property
    def awaited(self) -> int:
        """Exchanges of the last repetition that are over when it ends; others may go on."""
        end = max(self.cycle.period, self.cycle.pieces[-1].end)
        until = (end - self.cut) * (1 + 1e-9)
        return sum(exchange.end <= until for exchange in self.cycle.exchanges)

    @cached_property
    def flows(self) -> list[tuple[Exchange, float, float]]:
        """Exchanges at mean rates, those of one shape as one: share of the time under way, and payload bytes/s."""
        each = self.duration / self.times
        parts: dict[int, tuple[Exchange, float, float]] = {}
        for one in self.cycle.exchanges:
            if one.plan.size > 0 and len(one.plan.links):
                _, size, busy = parts.get(id(one.plan.usage), (one, 0.0, 0.0))
                size, busy = size + one.plan.size, busy + one.end - one.moves
                parts[id(one.plan.usage)] = one, size, busy
        return [(one, busy / each, size / each) for one, size, busy in parts.values()]

    def done(self, place: float) -> Done:
        """What is done by a place; what is done at the begins of repetitions and at the end is remembered."""
        if place in self._done:
            return self._done[place]
        done = Done(_passed(self, place), _waited(self, place))
        period = self.cycle.period
        if place >= self.duration or round(place / period) * period == place:
            self._done[place] = done
        return done

    @cached_property
    def _done(self) -> dict[float, Done]:
        return {}

    def between(self, begin: float, end: float) -> Between:
        """What is done between two places; remembered where what is done by them is."""
        between = self._between.get((begin, end))
        if between is None:
            between = Between.of(self.cycle, self.done(begin), self.done(end))
            # Only places that come again are remembered: see `done`.
            if begin in self._done and end in self._done:
                self._between[begin, end] = between
        return between

    @cached_property
    def _between(self) -> dict[tuple[float, float], Between]:
        return {}


@dataclass(frozen=True)
class Done:
    """How often each exchange has moved its bytes, and for how many seconds computation has waited, by axis."""

    passed: list[float]
    waited: dict[str, float]


@dataclass(frozen=True)
class Between:
    """Bytes that each exchange has moved, and seconds for which computation has waited, by axis."""

    moved: list[tuple[Plan, float]]
    waited: dict[str, float]

    @classmethod
    def of(cls, cycle: Cycle, before: Done, now: Done) -> Between:
        passed = zip(cycle.exchanges, before.passed, now.passed, strict=True)
        moved = [(one.plan, (b - a) * one.plan.size) for one, a, b in passed]
        waited = {
            axis: whole - before.waited[axis] for axis, whole in now.waited.items()
        }
        return cls(moved, waited)


def _passed(timeline: ExchangeTimeline, place: float) -> list[float]:
    """How often each exchange has moved its bytes by a place in a timeline, with the part of one under way."""
    if place >= timeline.duration:
        return [float(timeline.times)] * len(timeline.cycle.exchanges)
    moment = Moment.at(timeline, place)
    whole = moment.repetition
    return [
        whole
        + (1.0 if at < moment.ended else moment.moved if at == moment.ended else 0)
        for at in range(len(timeline.cycle.exchanges))
    ]


def _waited(timeline: ExchangeTimeline, place: float) -> dict[str, float]:
    """Seconds in which computation has waited for exchanges by a place in a timeline, by axis."""
    cycle, times = timeline.cycle, timeline.times
    if place >= timeline.duration:
        return {axis: times * waited for axis, waited in cycle.exposed.items()}
    whole = min(int(place / cycle.period), times - 1)
    part = cycle.exposed_until(place - whole * cycle.period)
    return {
        axis: whole * waited + part.get(axis, 0.0)
        for axis, waited in cycle.exposed.items()
    }


@dataclass(frozen=True)
class Moment:
    """A place in a timeline.

    Attributes
    ----------
    pieces, ended : int
        Pieces and exchanges of the repetition that are over.
    wait, left : float
        Seconds until the next piece begins (0: it has), and that are left of it.
    delay, moved : float
        Seconds until bytes of the exchange under way move (-1: it has not begun), and share of them that have.
    """

    repetition: int
    pieces: int
    wait: float
    left: float
    ended: int
    delay: float
    moved: float

    @classmethod
    def at(cls, timeline: ExchangeTimeline, place: float) -> Moment:
        cycle = timeline.cycle
        repetition = min(int(place / cycle.period), timeline.times - 1)
        now = place - repetition * cycle.period
        return cls(repetition, *_computed(cycle, now), *_exchanged(cycle, now))


def _computed(cycle: Cycle, now: float) -> tuple[int, float, float]:
    """Pieces that are over at a moment of a repetition; seconds until the next begins, and that are left of it."""
    over = sum(piece.end <= now for piece in cycle.pieces)
    if over == len(cycle.pieces):
        return over, 0.0, 0.0
    piece = cycle.pieces[over]
    return over, max(0.0, piece.begin - now), piece.end - max(now, piece.begin)


def _exchanged(cycle: Cycle, now: float) -> tuple[int, float, float]:
    """Exchanges that are over at a moment; of the next seconds until its bytes move, and share of them that have."""
    over = sum(exchange.end <= now for exchange in cycle.exchanges)
    if over == len(cycle.exchanges):
        return over, -1.0, 0.0
    one = cycle.exchanges[over]
    delay = max(0.0, one.moves - now) if now >= one.moves - one.delay else -1.0
    moved = (now - one.moves) / (one.end - one.moves) if now > one.moves else 0.0
    return over, delay, moved
