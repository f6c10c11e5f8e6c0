"""What lies across the ranks of a trace: counters of links and memory, and arrows between those that communicate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import COMMUNICATION, Timeline, group_ranks
from prestep.sim.exporters._trace_events import Event, nanoseconds, streams_of

LINKS = 1_000_000  # number of the process that has the links' counters: above those of ranks
MIB = 2.0**20
FINEST = 2e-3  # of the peak: smaller changes of memory are not worth an event


def links(result: Prediction) -> Iterator[Event]:
    """Counters of the busiest links in GB/s, in a process of their own; not in the files of single ranks."""
    if result.link_loads:
        yield _link_process("process_name", name="links")
        yield _link_process("process_sort_index", sort_index=LINKS)
    for link in result.link_loads:
        name = f"{link.name} (of {link.bandwidth / 1e9:.4g} GB/s)"
        times, loads = nanoseconds(link.time).tolist(), link.load.tolist()
        for at, load in zip(times, loads, strict=True):
            yield _counter(name, LINKS, at, {"GB/s": round(load / 1e9, 6)})


def _link_process(key: str, **args: Any) -> Event:
    return {"ph": "M", "name": key, "pid": LINKS, "tid": 0, "ts": 0, "args": args}


def _counter(name: str, process: int, at: int, values: Event) -> Event:
    """Values from the moment `at` (ns) on."""
    ts = at / 1000
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": ts, "args": values}


def flows(timeline: Timeline) -> Iterator[Event]:
    """Arrows between the spans of one communication: from the rank that came last to those that waited for it."""
    spans = timeline.select(timeline.matches("kind", *COMMUNICATION))
    if len(spans) == 0:
        return
    ends = _ArrowEnds(spans, streams_of(timeline))
    numbers = itertools.count(1)
    for meeting in _meetings(spans):
        latest, *waiting = sorted(meeting, key=ends.arrival)
        for span in waiting:
            number = next(numbers)
            yield ends.begin(number, latest)
            yield ends.finish(number, span)


def _meetings(spans: Timeline) -> Iterable[list[int]]:
    """Indices of the spans of each communication.

    A send and its receive, and the spans of a collective, share step, axis, group, the moment at which bytes begin, and
    the end.
    """
    columns = (
        spans["step"].tolist(),
        spans["axis"].tolist(),
        nanoseconds(spans["ready"]).tolist(),
        nanoseconds(spans["end"]).tolist(),
        [frozenset(group_ranks(group)) for group in spans["group"].tolist()],
    )
    meetings: dict[tuple[Any, ...], list[int]] = {}
    for span, key in enumerate(zip(*columns, strict=True)):
        meetings.setdefault(key, []).append(span)
    return meetings.values()


class _ArrowEnds:
    """The two events of an arrow between spans of communication."""

    def __init__(self, spans: Timeline, streams: dict[str, int]) -> None:
        self._rank = spans["rank"].tolist()
        self._thread = [streams[name] for name in spans["stream"].tolist()]
        self._start = nanoseconds(spans["start"]).tolist()
        self._ready = nanoseconds(spans["ready"]).tolist()

    def arrival(self, span: int) -> tuple[int, int]:
        """Sorts the last to come first."""
        return -self._start[span], self._rank[span]

    def begin(self, number: int, span: int) -> Event:
        return self._event("s", number, span, self._start[span])

    def finish(self, number: int, span: int) -> Event:
        """The arrow points to where bytes begin, within the span."""
        at = max(self._start[span], self._ready[span])
        return self._event("f", number, span, at) | {"bp": "e"}

    def _event(self, phase: str, number: int, span: int, at: int) -> Event:
        return {
            "ph": phase,
            "id": number,
            "pid": self._rank[span],
            "tid": self._thread[span],
            "ts": at / 1000,
            "cat": "communication",
            "name": "communication",
        }


def memory(
    result: Prediction, rank: int, window: tuple[float, float] | None = None
) -> Iterator[Event]:
    """A counter of a rank's memory by owner in MiB: what its allocator has handed out, where the GPU computes it."""
    allocations = {} if result.details is None else result.details.allocations
    if rank not in allocations:
        return
    for step in range(len(allocations[rank].end)):
        changes = allocations[rank].changes(step)
        if changes is None:
            return
        owners = {name: size for name, size in changes.owners.items() if size.max() > 0}
        total = sum(owners.values(), np.zeros(len(changes.time)))
        for change in _visible(changes.time, total, window):
            at = round(float(changes.time[change]) * 1e9)
            sizes = {
                owner: round(float(size[change]) / MIB, 3)
                for owner, size in owners.items()
            }
            yield _counter("memory (MiB)", rank, at, sizes)


def _visible(
    time: np.ndarray, total: np.ndarray, window: tuple[float, float] | None
) -> Iterator[int]:
    """Changes in the window that differ from the one before by more than `FINEST` of the peak."""
    begin, end = window or (-np.inf, np.inf)
    finest = FINEST * float(total.max())
    last = -np.inf
    for change in _fullest(time, total):
        size = float(total[change])
        if begin <= float(time[change]) < end and abs(size - last) >= finest:
            last = size
            yield change


def _fullest(time: np.ndarray, total: np.ndarray) -> list[int]:
    """Of all changes at one moment the one after which most is alive, in the order of time."""
    order = np.lexsort((total, time))
    last = np.append(np.flatnonzero(np.diff(time[order])), len(order) - 1)
    return order[last].tolist()  # type: ignore[no-any-return]
