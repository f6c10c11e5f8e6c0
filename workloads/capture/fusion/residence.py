"""When the tensors of compiled functions are in memory, where that differs from what was recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from prestep.workloads.capture.fusion.compile import Compiled


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
            own = frozenset(resized)
            compiled = {n: _without(region, own) for n, region in compiled.items()}
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


def _without(region: Compiled, storages: frozenset[int]) -> Compiled:
    """A region that says nothing of some storages."""
    return replace(
        region,
        absent=region.absent - storages,
        dropped=region.dropped - storages,
        taken=region.taken - storages,
        held=region.held - storages,
    )
