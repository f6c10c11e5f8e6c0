"""The clock of a run: SimPy's environment, whose events of the present moment need no place in its queue."""

from __future__ import annotations

from collections import deque

import simpy
from simpy.events import NORMAL, URGENT


class Clock(simpy.Environment):
    """Events come in the order in which SimPy has them; those of `soon` before the next of the queue.

    Attributes
    ----------
    soon : deque of Event
        What happens at this moment, after all that has happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.soon: deque[simpy.Event] = deque()

    @property
    def urgent(self) -> bool:
        """Whether the queue has something for this moment that comes before `soon`."""
        queue = self._queue
        return bool(queue) and queue[0][0] <= self._now and queue[0][1] == URGENT

    def trigger(self, event: simpy.Event) -> None:
        """Has an event happen now: after those that the queue has for this moment, which were there before."""
        queue = self._queue
        event._ok, event._value = True, None
        if queue and queue[0][0] <= self._now and queue[0][1] <= NORMAL:
            self.schedule(event)
        else:
            self.soon.append(event)

    def step(self) -> None:
        """Takes the next event, where SimPy runs them."""
        if self.soon and not self.urgent:
            self.schedule(self.soon.popleft(), URGENT)
        super().step()
