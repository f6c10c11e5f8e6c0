"""A chain under way that moves bytes: as one flow at its mean rates, or event by event where it must share links.

While the links that a chain uses have room for all that wants to pass, it takes as long as on an idle network, and only
its beginning and end are events. As soon as a link would be overfull its repetitions are played: computation, and every
exchange as a transfer of the network, beside it. When nothing disturbs it any more the next repetition flows again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import simpy

from prestep.sim.engine.exchange_timeline import Exchange, ExchangeTimeline, Moment
from prestep.sim.engine.fluid import Network, Transfer
from prestep.sim.engine.rank import ROUNDING, Running

# Of the time that computation takes on an idle network: a chain may be shorter than its exchanges where noise or a
# constant that is off shortens it as a whole, and kernels still take time.
LEAST = 1e-6


class ChainRun(Running):
    """A chain under way, from its begin on.

    Parameters
    ----------
    end
        When it ends on an idle network.
    time
        Seconds until then at full speed.
    """

    __slots__ = ("exposed", "flows", "lanes", "network", "place", "time", "timeline")

    def __init__(
        self,
        end: simpy.Event,
        kernel: int,
        time: float,
        speed: float,
        timeline: ExchangeTimeline,
        network: Network,
    ) -> None:
        super().__init__(network.env, end, kernel, time, speed)
        self.timeline, self.network, self.time = timeline, network, time
        self.exposed: dict[str, float] = {}
        self.lanes: _Lanes | None = None
        self.place = 0.0  # seconds of the timeline at which it began to flow
        self.flows: list[tuple[int, Exchange, float]] = []
        network.chains.enter(self, timeline.cycle)
        if self.flowing:
            self._flow()

    @property
    def flowing(self) -> bool:
        """Whether nothing on its links holds it up."""
        return self.lanes is None

    @property
    def transfer(self) -> int:
        """The number of its own transfer that is under way; -1: none."""
        if self.lanes is None or self.lanes.transfer is None:
            return -1
        return self.lanes.transfer.activity.number

    def adapt(self, speed: float) -> None:
        if self.lanes is None:
            super().adapt(speed)
            self._set_rates()
        else:
            self.speed = speed
            self.lanes.adapt()

    @property
    def stretch(self) -> float:
        """Factor on its computation, not on its exchanges: of slow GPUs, and of kernels beside other transfers."""
        cycle, nominal = self.timeline.cycle, self.timeline.duration
        if not cycle.computing:
            return 1.0
        period = cycle.period * self.time / nominal / self.speed
        return max(LEAST, (period - cycle.waiting) / cycle.computing)

    # -- as one flow ----------------------------------------------------------------------------
    def _flow(self) -> None:
        """Its exchanges at their mean rates from now on."""
        self.flows = [
            (self.network.flow(one.plan, busy), one, rate)
            for one, busy, rate in self.timeline.flows
        ]
        self._set_rates()

    def _set_rates(self) -> None:
        pace = self.speed * self.timeline.duration / self.time
        for number, exchange, rate in self.flows:
            self.network.set_flow(number, exchange.bound, rate * pace)

    def _halt(self, place: float) -> None:
        """It does not flow any more, being at a place (seconds of its timeline)."""
        for number, _, _ in self.flows:
            self.network.set_flow(number, -1, 0.0)
        self.flows = []
        done = self.timeline.between(self.place, place)
        for plan, size in done.moved:
            self.network.count(plan, size)
        for axis, waited in done.waited.items():
            self.expose(axis, waited)

    def expose(self, axis: str, time: float) -> None:
        """Its computation has waited for exchanges of an axis."""
        self.exposed[axis] = self.exposed.get(axis, 0.0) + time

    # -- event by event -------------------------------------------------------------------------
    def disturb(self) -> None:
        """A link that it uses is overfull from now on."""
        env = self.network.env
        left = self.left - (env.now - self.since) * self.speed
        if self.lanes is not None or left <= ROUNDING:
            return
        place = self.timeline.duration * (1.0 - left / self.time)
        self._halt(place)
        self.end_with(env.event())
        self.lanes = _Lanes(self, Moment.at(self.timeline, place))

    def calm_down(self, repetition: int) -> bool:
        """Flows again from the begin of a repetition on, if nothing disturbs it there."""
        if self.network.chains.crowded(self):
            return False
        env, timeline = self.network.env, self.timeline
        self.lanes, self.place = None, repetition * timeline.cycle.period
        self.left = self.time * (1.0 - self.place / timeline.duration)
        self.since = env.now
        self.end_with(env.timeout(max(0.0, self.left) / self.speed))
        self._flow()
        return True

    def leave(self) -> dict[str, float]:
        """It has ended: seconds in which its computation waited for exchanges, by axis."""
        if self.lanes is None:
            self._halt(self.timeline.duration)
        self.network.chains.leave(self)
        return self.exposed


class _Lanes:
    """The rest of a chain, event by event, from a moment on."""

    def __init__(self, chain: ChainRun, moment: Moment) -> None:
        self.chain, self.timeline, self.moment = chain, chain.timeline, moment
        self.env = chain.network.env
        cycle = self.timeline.cycle
        self.ended = moment.repetition * len(cycle.exchanges) + moment.ended
        self.computed = moment.repetition * len(cycle.pieces) + moment.pieces
        self.piece: Running | None = None
        self.transfer: Transfer | None = None
        self.over = self.idle = False  # idle: no exchange can begin
        self._progress = self.env.event()
        self.env.process(self._compute())
        self.env.process(self._communicate())

    def adapt(self) -> None:
        """Computation goes on at the chain's speed."""
        if self.piece is not None:
            self.piece.adapt(1.0 / self.chain.stretch)

    def _notify(self) -> None:
        """Wakes the other lane."""
        before, self._progress = self._progress, self.env.event()
        before.succeed()

    def _compute(self) -> Generator[Any, Any, None]:
        timeline, first = self.timeline, self.moment
        for repetition in range(first.repetition, timeline.times):
            if repetition > first.repetition and self._calms_down(repetition):
                return
            begun = first.pieces if repetition == first.repetition else 0
            for number in range(begun, len(timeline.cycle.pieces)):
                yield from self._wait(repetition, number)
                length = self._length(repetition, number)
                if length > ROUNDING:
                    yield self._run(length)
                self.piece = None
                self.computed += 1
                self._notify()
        yield from self._wait_for(timeline.times - 1, timeline.awaited)
        self.chain.end.succeed()

    def _wait(self, repetition: int, number: int) -> Generator[Any, Any, None]:
        """Before a piece: until its exchanges have ended, and as long as on an idle network.

        Slower computation hides no more of them.
        """
        awaited, since = self.timeline.cycle.pieces[number].awaited, self.env.now
        if repetition == self.timeline.times - 1:
            awaited = min(awaited, self.timeline.awaited)
        yield from self._wait_for(repetition, awaited)
        pause = since + self._pause(repetition, number) - self.env.now
        if pause > ROUNDING:
            yield self.env.timeout(pause)
            self.chain.expose(self._axis(number), pause)

    def _calms_down(self, repetition: int) -> bool:
        """The chain flows again, with all exchanges of the repetitions before over."""
        before = repetition * len(self.timeline.cycle.exchanges)
        if self.ended < before or not self.idle:
            return False
        self.over = self.chain.calm_down(repetition)
        if self.over:
            self._notify()
        return self.over

    def _pause(self, repetition: int, number: int) -> float:
        """Seconds before a piece on an idle network; the last repetition lacks what would lie behind its end."""
        first, cycle = self.moment, self.timeline.cycle
        pause = cycle.pauses[number]
        if repetition == first.repetition and number == first.pieces:
            pause = first.wait
        if repetition < self.timeline.times - 1:
            return pause
        return min(
            pause, cycle.period - self.timeline.cut - cycle.pieces[number].begin + pause
        )

    def _axis(self, number: int) -> str:
        """The axis of the last exchange that a piece waits for."""
        cycle = self.timeline.cycle
        return cycle.exchanges[cycle.pieces[number].awaited - 1].comm.axis

    def _length(self, repetition: int, number: int) -> float:
        """Seconds of a piece on an idle GPU; the last repetition lacks the last kernel."""
        first, piece = self.moment, self.timeline.cycle.pieces[number]
        length = piece.length
        if repetition == first.repetition and number == first.pieces:
            length = first.left
        if repetition < self.timeline.times - 1:
            return length
        return min(
            length, self.timeline.cycle.period - self.timeline.cut - piece.end + length
        )

    def _run(self, length: float) -> simpy.Event:
        """A piece of so many seconds begins; its end."""
        stretch = self.chain.stretch
        end = self.env.timeout(length * stretch)
        kernel = self.chain.kernel
        self.piece = Running(self.env, end, kernel, length, 1.0 / stretch)
        return end

    def _wait_for(self, repetition: int, exchanges: int) -> Generator[Any, Any, None]:
        """Until so many exchanges of a repetition have ended; the time is exposed."""
        cycle, since = self.timeline.cycle, self.env.now
        needed = repetition * len(cycle.exchanges) + exchanges
        if self.ended >= needed or not exchanges:
            return
        while self.ended < needed:
            axis = cycle.exchanges[self.ended % len(cycle.exchanges)].comm.axis
            yield self._progress
            self.chain.expose(axis, self.env.now - since)
            since = self.env.now

    def _communicate(self) -> Generator[Any, Any, None]:
        cycle, delay, moved = self.timeline.cycle, self.moment.delay, self.moment.moved
        while self.ended < self.timeline.times * len(cycle.exchanges):
            repetition, number = divmod(self.ended, len(cycle.exchanges))
            exchange = cycle.exchanges[number]
            needed = repetition * len(cycle.pieces) + exchange.after
            while self.computed < needed:
                self.idle = True
                yield self._progress
                if self.over:
                    return
            self.idle = False
            yield self.env.timeout(exchange.delay if delay < 0 else delay)
            rest = exchange.plan.size * (1.0 - moved)
            if rest > 0:
                yield self._begin(exchange, rest)
                self.transfer = None
            delay, moved = -1.0, 0.0
            self.ended += 1
            self._notify()

    def _begin(self, exchange: Exchange, size: float) -> simpy.Event:
        """The bytes of an exchange, as a transfer."""
        plan = exchange.plan
        part = plan if size == plan.size else replace(plan, size=size)
        self.transfer = self.chain.network.begin(part, own=True)
        return self.transfer.done
