"""Regions of a recording: the calls of compiled functions, each with its backward, and the pieces that are compiled.

A piece is a run of operations on one stream that nothing interrupts: communication, events and reads by the host stay
where they are, as Dynamo's breaks do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prestep.workloads.capture.recording import Event
from prestep.workloads.fusion.graph import Region, Step

#: Events in a region that break no piece: memory is taken and given back as Python goes on.
ASIDE = ("allocate", "free")


@dataclass(frozen=True)
class Arranged:
    """Events in which a piece stands for its operations, and the regions by number.

    A piece is an event of kind "piece" with stream, number of the region, backward, and its place among the region's
    pieces.
    """

    events: tuple[Event, ...]
    regions: dict[int, Region]


def arrange(events: Sequence[Event]) -> Arranged:
    """Collects the operations of compiled functions into pieces."""
    if not any(event.kind == "region" for event in events):
        return Arranged(tuple(events), {})
    arranging = _Arranging()
    for event in _undivided(events):
        arranging.add(event)
    return Arranged(tuple(arranging.events), arranging.regions)


def _undivided(events: Sequence[Event]) -> Iterator[Event]:
    """Backward passes of regions in one piece: what hooks of gradients do in between comes after them.

    Compiled backward is one node of autograd's graph, so the gradients of all its weights arrive together. Memory is
    taken where it was: a region is recorded to begin after its first operation has its results.
    """
    last = {
        event.values["number"]: at
        for at, event in enumerate(events)
        if event.kind == "region" and event.values["backward"]
    }
    postponed: list[Event] = []
    opened = 0  # where the region began that is open, or goes on later
    suspended: int | None = None  # the region that goes on later
    for at, event in enumerate(events):
        if event.kind == "region":
            opened = at
            if event.values["number"] == suspended:
                suspended = None
                continue
            if suspended is not None:
                yield _end_of(suspended)
                suspended = None
        if suspended is not None and event.kind != "allocate":
            postponed.append(event)
            continue
        continues = event.kind == "region_end" and opened < last.get(
            event.values["number"], -1
        )
        if continues and events[opened].values["backward"]:
            suspended = event.values["number"]
            continue
        yield event
        if event.kind == "region_end":
            yield from postponed
            postponed = []
    yield from postponed


def _end_of(number: int) -> Event:
    return Event("region_end", {"number": number, "results": []}, 0)


class _Arranging:
    """The events so far, and the piece that grows."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.regions: dict[int, Region] = {}
        self._open: tuple[int, bool] | None = None
        self._steps: list[Step] = []
        self._stream = 0

    def add(self, event: Event) -> None:
        if event.kind == "operate_compiled":
            self._operate(event)
        elif event.kind == "region":
            self._begin(event)
        elif event.kind == "region_end":
            self._end(event)
        else:
            self._other(event)

    def _begin(self, event: Event) -> None:
        number, backward = event.values["number"], bool(event.values["backward"])
        self._open = number, backward
        self.regions.setdefault(number, Region())
        self.events.append(event)

    def _end(self, event: Event) -> None:
        self._finish_piece()
        if self._open is not None:
            number, _ = self._open
            self.regions[number].results += event.values["results"]
            self.events.append(event)
        self._open = None

    def _operate(self, event: Event) -> None:
        values = event.values
        if self._steps and values["stream"] != self._stream:
            self._finish_piece()
        self._stream = values["stream"]
        self._steps.append(
            Step(
                values["operation"],
                tuple((storage, offset) for storage, offset in values["reads"]),
                tuple((storage, offset) for storage, offset in values["writes"]),
            )
        )

    def _other(self, event: Event) -> None:
        if self._open is None:
            self.events.append(event)
            return
        if event.kind not in ASIDE:
            self._finish_piece()
        if event.kind == "free" and self._open[1]:
            self.regions[self._open[0]].freed.add(event.values["storage"])
        self.events.append(event._replace(calls=0))

    def _finish_piece(self) -> None:
        if not self._steps or self._open is None:
            return
        number, backward = self._open
        region = self.regions[number]
        pieces = region.backward if backward else region.forward
        place = {
            "stream": self._stream,
            "number": number,
            "backward": int(backward),
            "place": len(pieces),
        }
        pieces.append(self._steps)
        self._steps = []
        self.events.append(Event("piece", place, 0))
