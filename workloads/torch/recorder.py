"""Records the program of one rank: what its host spends time on, launches and waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, OpGraph, Program, Rendezvous
from prestep.workloads.host_work import Launched, Work, host_work
from prestep.workloads.memory.account import Memory, Moment, Storage
from prestep.workloads.operators.scratch import scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prestep.sim.graph.opgraph import Chain
    from prestep.workloads.operation import Operation
    from prestep.workloads.operators.rules import Rule
    from prestep.workloads.torch.again import Dropped

PHASES = ("forward", "backward", "optimizer", "communication")
FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = range(len(PHASES))


class Shared:
    """Tables that all ranks of one graph have in common: kernels, streams, rendezvous."""

    def __init__(self) -> None:
        self.kernels: dict[Kernel | Chain, int] = {}
        self._by_operation: dict[Operation, Launched] = {}
        self.streams: dict[str, int] = {}
        self.rendezvous = Rendezvous()

    def kernel(self, kernel: Kernel | Chain) -> int:
        """The number of a kernel."""
        return self.kernels.setdefault(kernel, len(self.kernels))

    def launched(self, operation: Operation, rule: Rule) -> Launched:
        """What an operation launches, by the rule of its family, what the host spends on it, and its scratch memory."""
        if operation not in self._by_operation:
            kernels = rule(operation)
            work = host_work(operation, kernels)
            self._by_operation[operation] = kernels, work, scratch(operation)
        return self._by_operation[operation]

    def stream(self, name: str) -> int:
        """The number of a stream."""
        return self.streams.setdefault(name, len(self.streams))

    def graph(
        self,
        programs: Iterable[Program],
        represents: Mapping[int, tuple[int, ...]],
        **more: Any,
    ) -> OpGraph:
        """Recorded programs with their common tables; ``more``: as of `OpGraph`."""
        return OpGraph(
            tuple(programs),
            tuple(self.kernels),
            tuple(self.rendezvous.comms),
            tuple(self.streams),
            PHASES,
            dict(represents),
            **more,
        )


@dataclass
class Columns:
    """The operations issued so far; what the columns mean says `Program`."""

    kind: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    payload: list[int] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    deps: list[tuple[int, ...]] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def truncate(self, length: int) -> None:
        """Drops the operations from a place on."""
        for column in vars(self).values():
            del column[length:]

    def last_of(self, stream: int) -> int | None:
        """The last operation of a stream; None if there is none."""
        # From the end, where it is met at once: this is done for every layer that is run again.
        places = reversed(range(len(self.stream)))
        return next((place for place in places if self.stream[place] == stream), None)


@dataclass(frozen=True)
class _Moment:
    """A moment to which recording can go back: operations issued, the host's work, what streams await, and memory."""

    issued: int
    counts: dict[str, float]
    host_pending: float
    waits: dict[str, dict[int, None]]
    memory: Moment | None = None


class Recorder:
    """Records the program of one rank.

    Parameters
    ----------
    rank : int
    shared : Shared
        Tables common to all ranks of the graph.
    costs : dict
        Seconds of host time by operator name (see ``sim/costs/frameworks``).

    Attributes
    ----------
    memory : Memory
    phase, layer, microbatch : int
        What the next operations belong to.
    stream : str
        The stream that kernels are launched on.
    launching : str
        The host operation that launches a kernel.
    captured : bool
        In a part that a CUDA graph replays.
    blocking : bool
        The host waits for all that it launches (CUDA_LAUNCH_BLOCKING).
    reserved : int
        SMs that kernels of operators leave to others.
    drop : Dropped, optional
        Which kernels are left out.
    drop_collective : callable, optional
        Which collectives are, by operation and bytes of the result.
    counts : dict
        How often each host operation ran, for calibration.
    host_pending : float
        Seconds that the host has spent since the last launch.
    """

    def __init__(self, rank: int, shared: Shared, costs: dict[str, float]) -> None:
        self.rank, self.shared, self.costs = rank, shared, costs
        self.phase, self.layer, self.microbatch = 0, -1, 0
        self.stream, self.launching = "compute", "launch"
        self.captured = self.blocking = False
        self.reserved = 0
        self.drop: Dropped | None = None
        self.drop_collective: Callable[[str, float], bool] | None = None
        self.counts: dict[str, float] = defaultdict(float)
        self.host_pending = 0.0
        self.columns = Columns()
        self.memory = Memory()
        self.memory.stream = self.stream
        self.memory.issued = self.columns.kind
        self._parts: list[tuple[int, ...]] = []
        self._last: dict[str, int] = {}
        self._waits: dict[str, dict[int, None]] = {}  # in order
        self._last_save = _Moment(0, {}, 0.0, {})

    # -- launches -------------------------------------------------------------------------------
    def cpu(self, name: str, count: float = 1.0) -> None:
        """Host time of an operator, spent before the next launch."""
        if self.captured:
            return
        self.counts[name] += count
        self.host_pending += self.costs[name] * count

    def launch(
        self, kernel: Kernel | Chain, stream: str | None = None, name: str = ""
    ) -> int:
        """A kernel on a stream; returns the operation's index."""
        if self.drop is not None and isinstance(kernel, Kernel) and self.drop(kernel):
            self.host_pending = 0.0
            return self.issued - 1
        stream = stream or self.stream
        name = name or kernel.kind
        index = self._add(KERNEL, self.shared.kernel(kernel), stream, name)
        if self.blocking:
            self.synchronize(stream)
        return index

    def spend(self, work: Work) -> None:
        """Host time of an operation; in a backward pass it is autograd that calls it."""
        for name, count in work[self.phase == BACKWARD]:
            self.cpu(name, count)

    def operate(
        self,
        operation: Operation,
        rule: Rule,
        arguments: Sequence[object] = (),
        results: Sequence[object] = (),
        share: float = 1.0,
    ) -> None:
        """An operator as PyTorch's dispatcher sees it: the host's time for it, its kernels, and their scratch memory.

        ``arguments`` and ``results`` have its tensors, of which a tape that is compiled wants to know; ``share``: what
        part of the scratch memory the program's own call takes.
        """
        kernels, work, passing = self.shared.launched(operation, rule)
        self.spend(work)
        for kernel in kernels:
            if self.reserved:
                kernel = replace(kernel, reserved=self.reserved)
            self.launch(kernel, name=operation.name)
        if passing:
            self.scratch(share * passing)

    def scratch(self, size: float) -> None:
        """Memory that lives as long as the kernel just launched: freed as soon as the host has launched it."""
        Storage(self.memory, size, "workspace")

    def communicate(self, parts: Iterable[int], stream: str, name: str) -> int:
        """An operation that takes part in the given rendezvous and ends when all of them have ended."""
        self._parts.append(tuple(parts))
        return self._add(COMM, len(self._parts) - 1, stream, name)

    def synchronize(
        self, stream: str = "compute", event: tuple[int, ...] | None = None
    ) -> int:
        """The host waits for everything issued on a stream so far, or for an event."""
        event = self.record(stream) if event is None else event
        self._waits["host"] = dict.fromkeys(event)
        return self._add(SYNC, 0, "host", "synchronize")

    def _add(self, kind: int, payload: int, stream: str, name: str) -> int:
        """Issues an operation; its index."""
        columns = self.columns
        index = len(columns.kind)
        columns.kind.append(kind)
        columns.stream.append(self.shared.stream(stream))
        columns.payload.append(payload)
        if not self.captured:
            self.counts[self.launching] += 1
            self.host_pending += self.costs[self.launching]
        columns.host.append(self.host_pending)
        self.host_pending = 0.0
        columns.deps.append(tuple(self._waits.pop(stream, ())))
        columns.phase.append(self.phase)
        columns.layer.append(self.layer)
        columns.microbatch.append(self.microbatch)
        columns.names.append(name)
        self._last[stream] = index
        return index

    @property
    def issued(self) -> int:
        """Operations so far."""
        return len(self.columns.kind)

    # -- events ---------------------------------------------------------------------------------
    def record(self, stream: str | None = None) -> tuple[int, ...]:
        """An event on a stream: the operations whose end it marks.

        Before the first operation of a stream in this step that is its last one of the previous step, written
        as a negative number until the step is complete.
        """
        stream = stream or self.stream
        last = self._last.get(stream, -1 - self.shared.stream(stream))
        return (last, *self._waits.get(stream, ()))

    def wait(self, event: Iterable[int], stream: str | None = None) -> None:
        """Later operations of a stream start only after the event: once, however often they wait for it."""
        awaited = self._waits.setdefault(stream or self.stream, {})
        awaited.update(dict.fromkeys(event))

    # -- recomputation --------------------------------------------------------------------------
    def saves(self) -> None:
        """An operator is about to save an input for backward (recomputation stops after the last such moment)."""
        waits = {stream: dict(events) for stream, events in self._waits.items()}
        memory = self.memory.moment()
        self._last_save = _Moment(
            self.issued, dict(self.counts), self.host_pending, waits, memory
        )

    def forget_from_last_product(self, first: int) -> None:
        """Drops what was issued since ``first`` from the last product of two matrices on."""
        columns, numbers = self.columns, self.shared.kernels.items()
        of_products = {
            n for one, n in numbers if isinstance(one, Kernel) and one.is_product
        }
        products = [
            i
            for i in range(first, self.issued)
            if columns.kind[i] == KERNEL and columns.payload[i] in of_products
        ]
        if products:
            at, counts = products[-1], dict(self.counts)
            self._last_save = _Moment(at, counts, 0.0, self._awaited_before(at))
            self.forget()

    def _awaited_before(self, at: int) -> dict[str, dict[int, None]]:
        """What streams await when nothing from an operation on has been issued: its own what it waited for."""
        waits = {
            stream: {event: None for event in events if event < at}
            for stream, events in self._waits.items()
        }
        names = {number: stream for stream, number in self.shared.streams.items()}
        stream = names[self.columns.stream[at]]
        return {**waits, stream: dict.fromkeys(self.columns.deps[at])}

    def forget(self) -> None:
        """Takes back what was issued since the last moment at which something was saved, and waits made since then."""
        moment = self._last_save
        self.columns.truncate(moment.issued)
        self.counts = defaultdict(float, moment.counts)
        self.host_pending = moment.host_pending
        if moment.memory is not None:
            self.memory.forget(moment.memory)
        self._waits = {stream: dict(events) for stream, events in moment.waits.items()}
        for stream, last in list(self._last.items()):
            if last >= moment.issued:
                place = self.columns.last_of(self.shared.streams[stream])
                if place is None:
                    del self._last[stream]
                else:
                    self._last[stream] = place

    @contextmanager
    def temporarily(self, **values: object) -> Iterator[None]:
        """Attributes have other values here."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def capture(
        self, captured: bool = True, replay: bool = True
    ) -> AbstractContextManager[None]:
        """What is issued here and its backward are replayed by a CUDA graph, which costs the host one operation.

        Without ``replay`` it belongs to a graph that was paid for.
        """
        if captured and replay and not self.captured:
            self.cpu("graph_replay")
        return self.temporarily(captured=self.captured or captured)

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        """Kernels are launched on another stream."""
        before, self.stream = self.stream, stream
        self.memory.stream = stream
        try:
            yield
        finally:
            self.stream = self.memory.stream = before

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """A module runs forward, of this name in the one around it."""
        memory = self.memory
        before, memory.module = memory.module, f"{memory.module}.{name}".strip(".")
        try:
            yield
        finally:
            memory.module = before

    def launching_by(self, operation: str) -> AbstractContextManager[None]:
        """Kernels are launched by another host operation: compiled code has its own launchers."""
        return self.temporarily(launching=operation)

    # -- result ---------------------------------------------------------------------------------
    def program(self) -> Program:
        """The recorded columns; dependencies on the previous step become negative indices."""
        columns = self.columns
        return Program(
            self.rank,
            np.array(columns.kind, np.int8),
            np.array(columns.stream, np.int16),
            np.array(columns.payload, np.int32),
            np.array(columns.host, np.float64),
            self._dependencies(),
            np.array(columns.phase, np.int8),
            np.array(columns.layer, np.int16),
            np.array(columns.microbatch, np.int16),
            tuple(self._parts),
            tuple(columns.names),
        )

    def _dependencies(self) -> tuple[tuple[int, ...], ...]:
        """What every operation waits for; operations of the step before have negative indices.

        A wait does not end with a step: where no operation of its stream comes after it, the stream's first operation
        of the next step waits.
        """
        marks = {
            -1 - number: self._last_event(s)
            for s, number in self.shared.streams.items()
        }
        deps = [
            [event for d in mine for event in marks.get(d, (d,))]
            for mine in self.columns.deps
        ]
        for stream in self._waits.keys() & self._last.keys():
            first = self.columns.stream.index(self.shared.streams[stream])
            deps[first] += marks[-1 - self.shared.streams[stream]][1:]
        return tuple(tuple(dict.fromkeys(mine)) for mine in deps)

    def _last_event(self, stream: str) -> tuple[int, ...]:
        """An event recorded on a stream when the step has been issued, as the next step sees it.

        What that step would find of the one before this has no part in it: an index reaches back one step.
        """
        event = self.record(stream)
        return tuple(d - self.issued for d in event if d >= 0)
