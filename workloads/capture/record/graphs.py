"""CUDA graphs that a program records: what one asked for is kept, and written down again with every replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from prestep.workloads.capture.record.streams import Log, Stream, Streams

#: Events of memory: they happen once, while the graph is recorded.
ONCE = ("allocate", "free")
#: Where streams stand among the values of events that a graph may have.
STREAM = (
    "operate",
    "operate_compiled",
    "communicate",
    "wait_collective",
    "record",
    "wait",
)


class Graph:
    """In the place of `torch.cuda.CUDAGraph`.

    Attributes
    ----------
    recording
        The graph that is recorded now.
    recorded
        Called when one was: the steps before it were to warm up.
    replayed
        Called after a replay, with whether it computed gradients, and the optimizers that it steps.
    """

    recording: ClassVar[Graph | None] = None
    recorded: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    replayed: ClassVar[Callable[[bool, list[Any]], None]] = staticmethod(
        lambda backward, optimizers: None
    )
    _pools: ClassVar[Any] = itertools.count(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self._events: list[tuple[Any, ...]] = []
        self._stream = 0
        self._backward = False
        self._optimizers: list[Any] = []
        self._pool: Any = (0, next(self._pools))

    def capture_begin(self, pool: Any = None, *_: Any, **__: Any) -> None:
        Log.arrive()
        log = Log.current
        self._pool, self._stream = pool or self._pool, Streams.now.number
        self._outside = log.events, log.open, log.backward
        log.events, log.open, log.backward = [], True, False
        Graph.recording = self

    def capture_end(self) -> None:
        Log.arrive()
        log = Log.current
        events, self._backward = log.events, log.backward
        log.events, log.open, log.backward = self._outside
        self._events = [event for event in events if event[0] not in ONCE]
        for kind, *values, _ in events:
            if kind in ONCE:
                log.add(kind, *values)
        Graph.recording = None
        Graph.recorded()

    def steps(self, optimizer: Any) -> None:
        """An optimizer was recorded to update weights."""
        self._optimizers.append(optimizer)

    def replay(self) -> None:
        log, now = Log.current, Streams.now.number
        log.add("replay")
        for kind, *values, _ in self._events:
            if kind in STREAM and values[0] == self._stream:
                values[0] = now
            log.add(kind, *values)
        log.add("replay_end")
        Graph.replayed(self._backward, self._optimizers)

    def pool(self) -> Any:
        return self._pool

    def reset(self, *_: Any) -> None:
        self._events = []

    def instantiate(self, *_: Any) -> None:
        """Nothing is to be made ready."""

    enable_debug_mode = debug_dump = instantiate


def install() -> None:
    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = Graph
        module.graph_pool_handle = lambda: (0, next(Graph._pools))
        module.is_current_stream_capturing = lambda: Graph.recording is not None
    Stream.is_capturing = lambda stream: Graph.recording is not None
    torch._C._host_emptyCache = lambda: None
