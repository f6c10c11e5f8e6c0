"""What was asked of the GPU, in order, while a step is recorded."""

from __future__ import annotations

from typing import Any, ClassVar


class Log:
    """Events of the step that runs now.

    Attributes
    ----------
    events
        Rows of the recording; see `workloads.capture.recording` for their columns.
    open
        Whether anything is written down: it is not before the first step, nor after the one that is kept.
    """

    current: ClassVar[Log]
    compiled: ClassVar[list[str]] = []  # what the program asked to have compiled

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.open = True
        self.backward = False  # whether a gradient was computed since the last boundary
        self.calls = 0  # calls of Python functions since the last event

    def add(self, kind: str, *values: Any) -> None:
        if self.open:
            self.events.append((kind, *values, self.calls))
            self.calls = 0


Log.current = Log()
