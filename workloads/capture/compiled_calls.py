"""Compiled functions in one rank's step: the kernels of their pieces, and which of their tensors are in memory when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from prestep.workloads.capture.recording import RankRecording
from prestep.workloads.capture.regions import arrange
from prestep.workloads.fusion.compile import Compiled, Compiler
from prestep.workloads.fusion.join import Launch


class Residence:
    """Corrects what a recording says of storages: some are never there, some not between forward and backward.

    Parameters
    ----------
    compiled
        Regions by number.
    resized
        Storages that the program itself takes more than once, as FSDP does for gathered weights: left to it.
    """

    def __init__(
        self, compiled: Mapping[int, Compiled], resized: Collection[int] = ()
    ) -> None:
        if resized:
            compiled = {n: _without(region, resized) for n, region in compiled.items()}
        self._compiled = compiled
        self._absent = {s for region in compiled.values() for s in region.absent}
        self._again = {
            storage: number
            for number, region in compiled.items()
            for storage in region.dropped | region.taken
        }
        self._sizes: dict[int, int] = {}
        self._begun: set[int] = set()  # regions whose backward has
        self._freed: set[int] = set()  # by the program, while a region holds them
        self._holders: dict[int, set[int]] = {}  # regions that a storage stays for
        for number, region in compiled.items():
            for storage in region.held if region.backward else ():
                self._holders.setdefault(storage, set()).add(number)

    def takes(self, storage: int, size: int) -> bool:
        """Whether a storage is taken where the program took it."""
        number = self._again.get(storage)
        if number is not None:
            self._sizes[storage] = size
            return storage in self._compiled[number].dropped
        return storage not in self._absent

    def gives_back(self, storage: int) -> bool:
        """Whether a storage is given back where the program did."""
        if storage in self._absent:
            return False
        number = self._again.get(storage)
        if number is not None and number in self._begun:
            return storage in self._compiled[number].taken
        if number is not None or self._is_held(storage):
            self._freed.add(storage)
            return False
        return True

    def _is_held(self, storage: int) -> bool:
        """Whether the backward of a region that has not begun needs a storage; one that has is done with it."""
        return not self._holders.get(storage, set()) <= self._begun

    def begin_backward(self, number: int) -> dict[int, int]:
        """Bytes of what backward takes at its beginning, by storage."""
        if number in self._begun:
            return {}
        self._begun.add(number)
        return {s: self._sizes[s] for s in sorted(self._compiled[number].taken)}

    def end(self, number: int) -> list[int]:
        """What is given back as a region ends: after forward what is computed again, after backward what was held."""
        region = self._compiled[number]
        if number not in self._begun:
            return sorted(region.dropped)
        for storage in region.held:
            self._holders.get(storage, set()).discard(number)
        over = {s for s in region.held if not self._holders.get(s)} | region.taken
        over &= self._freed
        self._freed -= over
        return sorted(over)


class CompiledCalls:
    """Events of a rank in which pieces stand for operations, with the regions compiled.

    Attributes
    ----------
    events
        Of kinds that a recording has, and "piece".
    residence
        Which storages are in memory when.
    """

    def __init__(self, rank: RankRecording, compiler: Compiler) -> None:
        arranged = arrange(rank.events)
        self.events = arranged.events
        self._compiled = {
            number: compiler.compile(region, rank.alive)
            for number, region in arranged.regions.items()
        }
        self.residence = Residence(self._compiled, _resized(rank))

    def launches(self, piece: Mapping[str, Any]) -> tuple[Launch, ...]:
        """The kernels of a piece, by its event."""
        compiled = self._compiled[piece["number"]]
        pieces = compiled.backward if piece["backward"] else compiled.forward
        return pieces[piece["place"]]


def _resized(rank: RankRecording) -> set[int]:
    """Storages that the program takes while it has them, or had them before."""
    taken = Counter(e.values["storage"] for e in rank.events if e.kind == "allocate")
    return {s for s, times in taken.items() if times + (s in rank.alive) > 1}


def _without(region: Compiled, storages: Collection[int]) -> Compiled:
    """A region that says nothing of some storages."""
    every = region.absent | region.dropped | region.taken | region.held
    return region.renumbered({s: s for s in every.difference(storages)})
