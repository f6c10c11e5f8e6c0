"""The log of a step, and stand-ins for CUDA's streams and events, which only write down who waits for what."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, ClassVar

import torch

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
        self.noticed: dict[tuple[str, int], int] = {}

    def notice(self, kind: str, backward: int) -> None:
        """Counts what is written down before the next event, with how often it happened."""
        key = kind, backward
        self.noticed[key] = self.noticed.get(key, 0) + 1

    def add(self, kind: str, *values: Any) -> None:
        if kind not in ASIDE:
            Log.arrive()
        if self.open:
            for (counted, backward), times in self.noticed.items():
                self.events.append((counted, times, backward, 0))
            self.noticed = {}
            self.events.append((kind, *values, self.calls))
            self.calls = 0


Log.current = Log()


#: The device that programs see: the one of their local rank.
SHOWN = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
_numbers = itertools.count(1)


class Event:
    """A point in a stream that other streams, or the host, may wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = 0  # 0: never recorded, so nobody has to wait for it
        self.device = SHOWN

    def record(self, stream: Stream | None = None) -> None:
        self.number = next(_numbers)
        Log.current.add("record", (stream or Streams.now).number, self.number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Streams.now).wait_event(self)

    def synchronize(self) -> None:
        if self.number:
            Log.current.add("host_waits_event", self.number)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        """Milliseconds that a program's own timers show: always 1, since nothing runs."""
        return 1.0


class Within:
    """`with torch.cuda.stream(s)`, or `with s`: operations inside go to ``s``; None: to the one of before."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        Streams.stack.append(Streams.now)
        Streams.now = self.stream or Streams.now
        return self.stream

    def __exit__(self, *_: object) -> None:
        Streams.now = Streams.stack.pop()


class Stream(Within):
    """A queue of operations; number 0 is the default one."""

    is_capturing: Callable[[Any], bool]  # `graphs` says it

    def __init__(
        self, *_: Any, number: int | None = None, priority: int = 0, **__: Any
    ) -> None:
        super().__init__(self)
        self.number = next(_numbers) if number is None else number
        self.priority = priority
        self.device = SHOWN
        self.device_index = 0
        self.stream_id = self.cuda_stream = self.number

    def wait_event(self, event: Event) -> None:
        if event.number:
            Log.current.add("wait", self.number, event.number)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        Log.current.add("host_waits_stream", self.number)

    def query(self) -> bool:
        return True

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class Streams:
    """The stream that operations go to now, and those to return to."""

    default = Stream(number=0)
    now = default
    stack: ClassVar[list[Stream]] = []

    @classmethod
    def switch(cls, stream: Stream) -> None:
        """Operations go to another stream from now on."""
        cls.now = stream
