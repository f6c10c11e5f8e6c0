"""Regions of a recording: the calls of compiled functions, each with its backward, and the pieces that are compiled.

A piece is a run of operations on one stream that nothing interrupts: communication, events and reads by the host stay
where they are, as Dynamo's breaks do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prestep.workloads.capture.recording import Event
from prestep.workloads.fusion.graph import Region, Step

#: Events in a region that break no piece: memory is taken and given back as Python goes on.
ASIDE = ("allocate", "free")


@dataclass(frozen=True)
class Arranged:
    """Events in which a piece stands for its operations, and the regions by number.

    A piece is an event of kind "piece" with stream, number of the region, backward, and its place among the region's
    pieces. `again`: by a region that a checkpoint around it runs again, the one that it is then, with the backward.
    """

    events: tuple[Event, ...]
    regions: dict[int, Region]
    again: dict[int, int] = field(default_factory=dict)


def arrange(events: Sequence[Event], sums: Collection[int] = ()) -> Arranged:
    """Collects the operations of compiled functions into pieces; ``sums`` are the operations that add two tensors."""
    if not any(event.kind == "region" for event in events):
        return Arranged(tuple(events), {})
    merged = _merged(events, sums)
    arranging = _Arranging({s for at in merged for s, _ in events[at].values["reads"]})
    for event in _undivided(events, merged):
        arranging.add(event)
    regions = arranging.regions
    _hand_over(regions)
    again = _run_again(regions)
    for number, other in again.items():
        mine, there = regions[number], regions[other]
        there.backward, mine.backward = mine.backward, []
        there.freed, mine.freed = mine.freed, set()
    events = _handed_over(arranging.events, again)
    return Arranged(events, regions, again)


def _hand_over(regions: Mapping[int, Region]) -> None:
    """What a graph of a function makes and another one reads is a result of the first: DDP cuts functions."""
    makers: dict[int, int] = {}
    for number, region in regions.items():
        for storage in (s for step in steps_of(region) for s, _ in step.writes):
            makers.setdefault(storage, number)  # views write in place
    for number, region in regions.items():
        for storage in {s for step in steps_of(region) for s, _ in step.reads}:
            maker = regions.get(makers.get(storage, number), region)
            if maker is not region and storage not in maker.results:
                maker.results.append(storage)


def _run_again(regions: Mapping[int, Region]) -> dict[int, int]:
    """Calls that ran again within a checkpoint, with the call that did, whose tensors the first's backward reads."""
    makers = {
        storage: number
        for number, region in regions.items()
        if not region.backward
        for step in steps_of(region)
        for storage, _ in step.writes
    }
    again: dict[int, int] = {}
    for number, region in regions.items():
        reads = (s for step in steps_of(region, True) for s, _ in step.reads)
        made = Counter(makers[s] for s in reads if s in makers)
        same = [n for n, _ in made.most_common() if _does_the_same(region, regions[n])]
        again.update({number: same[0]} if same else {})
    return again


def _does_the_same(one: Region, other: Region) -> bool:
    operations = [[s.operation for s in steps_of(each)] for each in (one, other)]
    return operations[0] == operations[1]


def steps_of(region: Region, backward: bool = False) -> Iterator[Step]:
    """The steps of all pieces, in their order."""
    pieces = region.backward if backward else region.forward
    return (step for piece in pieces for step in piece)


def _handed_over(
    events: Sequence[Event], again: Mapping[int, int]
) -> tuple[Event, ...]:
    """Events of backward passes with the number of the call whose tensors they read."""
    handed: list[Event] = []
    backward = False
    for event in events:
        number = event.values.get("number", 0)
        if event.kind == "region":
            backward = bool(event.values["backward"])
        of_regions = event.kind in ("region", "piece", "region_end")
        if of_regions and backward and number in again:
            event = event._replace(values={**event.values, "number": again[number]})
        handed.append(event)
    return tuple(handed)


def _merged(events: Sequence[Event], sums: Collection[int]) -> set[int]:
    """Places of sums of gradients that autograd makes between graphs: each comes from another one, and goes to one."""
    reads, writers = Counter[tuple[int, int]](), dict[int, int]()
    found: list[tuple[int, int, Event]] = []
    number, backward = 0, False
    for at, event in enumerate(events):
        if event.kind == "region":
            number, backward = event.values["number"], bool(event.values["backward"])
        if event.kind == "operate_compiled" and backward:
            read = {storage for storage, _ in event.values["reads"]}
            reads.update((number, storage) for storage in read)
            apart = [s for s in read if writers.get(s, number) != number]
            if event.values["operation"] in sums and apart:
                found.append((at, number, event))
            writers.update((storage, number) for storage, _ in event.values["writes"])
    return {
        at
        for at, region, event in found
        if not any(reads[region, s] for s, _ in event.values["writes"])
        and any(
            reads[region, s] == 1 and writers.get(s, region) != region
            for s, _ in event.values["reads"]
        )
    }


def _undivided(events: Sequence[Event], merged: Collection[int]) -> Iterator[Event]:
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
        if at in merged:
            names = ("stream", "operation", "backward")
            values = {name: event.values[name] for name in names}
            postponed.append(Event("operate", values, event.calls))
            continue
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

    def __init__(self, summed: set[int]) -> None:
        self.summed = summed  # storages of gradients that autograd adds between regions
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
            self.regions[self._open[0]].freed |= {event.values["storage"]} - self.summed
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
