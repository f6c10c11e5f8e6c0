"""What was asked of the GPU, in order, while a step is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

#: Events that say nothing about where the program is: memory is given back wherever Python drops a tensor.
ASIDE = ("allocate", "free", "region", "region_end")


class Log:
    """Events of the step that runs now.

    Attributes
    ----------
    arrive
        Called before an event, to write down that the program came to another region.
    events
        Rows of the recording; see `prestep.workloads.capture.recording` for their columns.
    twice
        Whether the backward that runs is to be differentiated again.
    open
        Whether anything is written down: it is not before the first step, nor after the one that is kept.
    """

    current: ClassVar[Log]
    compiled: ClassVar[set[str]] = set()  # compiled functions that were called
    twice: ClassVar[bool] = False
    arrive: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.open = True
        self.backward = False  # whether a gradient was computed since the last boundary
        self.calls = 0  # calls of Python functions since the last event

    def add(self, kind: str, *values: Any) -> None:
        if kind not in ASIDE:
            Log.arrive()
        if self.open:
            self.events.append((kind, *values, self.calls))
            self.calls = 0


Log.current = Log()
