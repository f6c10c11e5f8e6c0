"""Compiled functions in one rank's step: the kernels of their pieces, and which of their tensors are in memory when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from prestep.sim.graph.kernel import STATED, Kernel
from prestep.workloads.capture.recording import RankRecording
from prestep.workloads.capture.regions import arrange, steps_of
from prestep.workloads.fusion.compile import Compiled, Compiler
from prestep.workloads.fusion.graph import Region
from prestep.workloads.fusion.lifetimes import Issue
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import moved

#: The number of what no tensor of the program has, and below.
UNNAMED = -(2**32)


@dataclass(frozen=True)
class Call:
    """A call of a compiled function; ``storages`` are the recording's by the numbers that they have in ``compiled``."""

    compiled: Compiled
    storages: Mapping[int, int]

    def named(self, storages: Iterable[int]) -> set[int]:
        """The recording's numbers."""
        return {self.storages[s] for s in storages}


class Written(NamedTuple):
    """Storages that go as a kernel writes in their place, and those that come, with their bytes."""

    over: list[int]
    fresh: dict[int, int]


class Residence:
    """Which storages are in memory: those of compiled functions by what launches there, others as the program has them.

    A storage stays for whoever holds it: calls of compiled functions that read it or keep it for backward, and the
    program, which lets go of what it was given as the recording says.

    Parameters
    ----------
    resized
        Storages that the program itself takes more than once, as FSDP does for gathered weights: left to it.
    """

    def __init__(
        self,
        calls: Mapping[int, Call],
        there: Iterable[int] = (),
        resized: Collection[int] = (),
    ) -> None:
        self._calls, self._resized = calls, set(resized)
        self._made: set[int] = set()
        self._given: dict[int, list[int]] = {}  # what the program gets, by where it is
        for call in calls.values():
            self._made |= call.named(call.compiled.made) - self._resized
            for result, storage in call.compiled.results:
                given = self._given.setdefault(call.storages[storage], [])
                given.append(call.storages[result])
        self._open: tuple[int, set[int]] = (0, set())  # a call, and what it holds
        self._sizes: dict[int, int] = {}
        self._freed: set[int] = set()
        self._same = {r: s for s, results in self._given.items() for r in results}
        # Who holds a storage that is in memory: a call's number, or, below 0, the program through one of its own.
        self._holders = {storage: {-storage} for storage in there}

    def takes(self, storage: int, size: int) -> bool:
        """Whether a storage is taken where the program took it."""
        if storage in self._made:
            self._sizes[storage] = size
            return False
        number, wanted = self._open
        self._holders[storage] = {-storage, *((number,) if storage in wanted else ())}
        return True

    def gives_back(self, storage: int) -> list[int]:
        """What is given back where the program lets go of a storage."""
        self._freed.add(storage)
        places = dict.fromkeys((self._same.get(storage, storage), storage))
        return self._left_by(-storage, places)

    def begin(self, number: int, backward: bool) -> None:
        """A call holds what it reads and keeps of others'."""
        compiled, call = self._calls[number].compiled, self._calls[number]
        held = compiled.given[backward] | (compiled.kept - compiled.made)
        self._open = number, call.named(held) - self._resized
        for storage in self._open[1] & self._holders.keys():
            self._holders[storage].add(number)

    def written(self, number: int, issue: Issue) -> Written:
        """What a kernel takes, after what it writes in the place of."""
        storages, call = self._calls[number].storages, self._calls[number]
        over = self._left_by(number, [storages[old] for _, old in issue.reuses])
        reused = [(new, call.compiled.sizes[new]) for new, _ in issue.reuses]
        fresh: dict[int, int] = {}
        for local, size in (*issue.takes, *reused):
            storage = storages[local]
            if storage in self._made and storage not in self._holders:
                fresh[storage] = self._sizes.get(storage, round(size))
                given = set(self._given.get(storage, ())) - self._freed
                self._holders[storage] = {number, *(-each for each in given)}
        return Written(over, fresh)

    def dropped(self, number: int, issue: Issue) -> list[int]:
        """What nobody needs after a kernel; who calls holds what it hands over until the call ends."""
        call = self._calls[number]
        own = call.compiled.made | call.compiled.kept
        return self._left_by(
            number, [call.storages[s] for s in issue.drops if s in own]
        )

    def end(self, number: int, backward: bool) -> list[int]:
        """What is given back as a call ends: after forward it holds on to what it keeps."""
        call, self._open = self._calls[number], (0, set())
        kept = set() if backward else call.named(call.compiled.kept)
        held = [s for s, holders in self._holders.items() if number in holders]
        return self._left_by(number, sorted(set(held) - kept))

    def _left_by(self, holder: int, storages: Iterable[int]) -> list[int]:
        over = []
        for storage in storages:
            holders = self._holders.get(storage)
            if holders is not None:
                holders.discard(holder)
                if not holders:
                    del self._holders[storage]
                    over.append(storage)
        return over


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
        every = enumerate(compiler.operations)
        sums = {n for n, each in every if each.name == "aten.add.Tensor"}
        arranged = arrange(rank.events, sums)
        self.events = arranged.events
        unnamed = count(UNNAMED, -1)
        self._calls: dict[int, Call] = {}
        for number, region in arranged.regions.items():
            if number in arranged.again:
                continue
            compiled, names = compiler.compile(region, rank.alive)
            storages = {new: old for old, new in names.items()}
            storages |= {s: next(unnamed) for s in sorted(compiled.made) if s < 0}
            self._calls[number] = Call(compiled, storages)
        for number, again in arranged.again.items():
            pair = arranged.regions[number], arranged.regions[again]
            self._calls[number] = _first_run(*pair, self._calls[again], unnamed)
        self.residence = Residence(self._calls, rank.alive, _resized(rank))

    def issues(self, piece: Mapping[str, Any]) -> tuple[Issue, ...]:
        """What a piece launches, by its event."""
        compiled = self._calls[piece["number"]].compiled
        pieces = compiled.backward if piece["backward"] else compiled.forward
        return pieces[piece["place"]]


def _first_run(
    first: Region, again: Region, call: Call, unnamed: Iterator[int]
) -> Call:
    """A call that a checkpoint runs again in backward: what its graph keeps is packed, and dropped, as it has run."""
    numbers: dict[int, int] = {}
    for old, new in zip(steps_of(again), steps_of(first), strict=True):
        pairs = zip((*old.reads, *old.writes), (*new.reads, *new.writes), strict=True)
        numbers.update({there: here for (there, _), (here, _) in pairs})
    storages = {
        local: next(unnamed) if local < 0 else numbers.get(storage, storage)
        for local, storage in call.storages.items()
    }
    results = set(first.results)
    mine = tuple(pair for pair in call.compiled.results if storages[pair[0]] in results)
    plain = replace(call.compiled, backward=(), kept=frozenset(), results=mine)
    return Call(plain, storages)


def _resized(rank: RankRecording) -> set[int]:
    """Storages that the program takes while it has them, or had them before."""
    taken = Counter(e.values["storage"] for e in rank.events if e.kind == "allocate")
    return {s for s, times in taken.items() if times + (s in rank.alive) > 1}


def compiler_of(
    operations: Sequence[Operation], stated: Mapping[str, float]
) -> Compiler:
    """Of operations with what each launches without a compiler."""
    kernels = tuple(_kernels(operation, stated) for operation in operations)
    return Compiler(operations, kernels)


def _kernels(operation: Operation, stated: Mapping[str, float]) -> tuple[Kernel, ...]:
    """What an operation launches: one kernel where its time is stated."""
    seconds = stated.get(operation.operator)
    if seconds is None:
        return kernels_of(operation)
    size = moved(operation.operands, operation.results)
    return (Kernel(STATED, (round(seconds * 1e9),), "", "", max(size, 1.0)),)
