"""Stand-ins for CUDA's streams and events: they do nothing but write down who waits for what."""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar

import torch

from prestep.workloads.capture.record.log import Log

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


class Stream:
    """A queue of operations; number 0 is the default one."""

    def __init__(
        self, *_: Any, number: int | None = None, priority: int = 0, **__: Any
    ) -> None:
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

    def __enter__(self) -> Stream:
        Streams.stack.append(Streams.now)
        Streams.now = self
        return self

    def __exit__(self, *_: object) -> None:
        Streams.now = Streams.stack.pop()

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


class Within:
    """`with torch.cuda.stream(s)`: operations inside go to ``s``; None: to the one of before."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        Streams.stack.append(Streams.now)
        Streams.now = self.stream or Streams.now
        return self.stream

    def __exit__(self, *_: object) -> None:
        Streams.now = Streams.stack.pop()
