"""The clock of a run: a SimPy environment that can move its time on without an event.

What reads or sets attributes that SimPy does not document is in this file alone. `tests/contracts/test_simpy_inside.py`
holds what it relies on, and pyproject.toml the versions of SimPy.
"""

from __future__ import annotations

from operator import attrgetter

import simpy
from simpy.events import URGENT, EventPriority

__all__ = ["LAST", "LATE", "LATER", "URGENT", "Clock"]

# One after the other behind what else happens at the same time (in SimPy 0 is urgent and 1 normal).
LATE, LATER, LAST = map(EventPriority, (2, 3, 4))


class Clock(simpy.Environment):
    """A SimPy environment; its events come in the order in which SimPy would have them.

    Attributes
    ----------
    events : int
        Events that have been processed.

    Examples
    --------
    >>> clock = Clock()
    >>> def process():
    ...     yield clock.timeout(2.0)
    ...     if not clock.skip(1.0):
    ...         yield clock.timeout(1.0)
    >>> _ = clock.process(process())
    >>> clock.run()
    >>> clock.now
    3.0
    """

    # SimPy's own is a function in Python, and is asked for several times an event.
    now = property(attrgetter("_now"))

    def __init__(self) -> None:
        super().__init__(0.0)
        self.events = 0
        # Whether the event being processed has a single callback, after which nothing is left to happen at its moment.
        self._alone = False

    def after(self, delay: float, priority: EventPriority) -> simpy.Event:
        """`timeout(delay)` that comes before (URGENT) or after (LATE to LAST) what else happens at that time."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        self.schedule(event, priority, delay)
        return event

    def skip(self, seconds: float) -> bool:
        """Moves the time on at once if nothing happens in the meantime; returns whether it did.

        Otherwise the process has to wait for a timeout. A stream of kernels would spend a third of its time on timeouts
        that are the next event anyway.
        """
        end, queue = self._now + seconds, self._queue
        if not self._alone or (queue and queue[0][0] <= end):
            return False
        self._now = end
        return True

    def step(self) -> None:
        """Processes the next event, and counts it."""
        if self._queue:
            self._alone = len(self._queue[0][3].callbacks) == 1
            self.events += 1
        super().step()
