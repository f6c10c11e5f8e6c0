"""A region compiled: the kernels of its pieces, and which of its tensors are in memory when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Region, Step, Value, Versions, storages
from prestep.workloads.fusion.join import Joined, Launch, join
from prestep.workloads.fusion.nodes import EXCHANGE, nodes_of
from prestep.workloads.fusion.partition import Partition, partition
from prestep.workloads.operation import Operation


@dataclass(frozen=True)
class Compiled:
    """What a region launches and holds.

    Attributes
    ----------
    forward, backward
        Launches of each piece.
    absent
        Storages that are never in memory.
    dropped
        Those that backward computes again, so that they are given back as forward ends.
    taken
        Those that it computes again and writes: they are taken as backward begins.
    held
        Those that backward reads, and that have to stay until then.
    """

    forward: tuple[tuple[Launch, ...], ...]
    backward: tuple[tuple[Launch, ...], ...]
    absent: frozenset[int]
    dropped: frozenset[int]
    taken: frozenset[int]
    held: frozenset[int]

    def renumbered(self, numbers: Mapping[int, int]) -> Compiled:
        """The same region over storages with other numbers; those that get none are left out."""

        def renumber(storages: frozenset[int]) -> frozenset[int]:
            return frozenset(numbers[s] for s in storages if s in numbers)

        sets = map(renumber, (self.absent, self.dropped, self.taken, self.held))
        return Compiled(self.forward, self.backward, *sets)


class Compiler:
    """Compiles regions; those alike but for the numbers of their storages once.

    Parameters
    ----------
    kernels
        What each operation launches without a compiler.
    """

    def __init__(
        self, operations: Sequence[Operation], kernels: Sequence[tuple[Kernel, ...]]
    ) -> None:
        self.operations, self.kernels = operations, kernels
        self._seen: dict[object, Compiled] = {}

    def compile(self, region: Region, weights: Iterable[int]) -> Compiled:
        """The kernels of a region; ``weights`` are storages that are there all the time."""
        names = _names(region)
        alike = _renamed(region, names)
        there = frozenset(names[w] for w in weights if w in names)
        key = _key(alike, there)
        if key not in self._seen:
            self._seen[key] = self._compiled(alike, there)
        # Statistics have no number in the recording.
        return self._seen[key].renumbered({new: old for old, new in names.items()})

    def _compiled(self, region: Region, weights: frozenset[int]) -> Compiled:
        versions = Versions()
        forward = [self._nodes(piece, versions) for piece in region.forward]
        results = {versions.of(storage) for storage in region.results}
        changed = _changed(versions)
        made_by = set(versions.now)
        backward = [self._nodes(piece, versions) for piece in region.backward]
        cut = partition(_flat(forward), _flat(backward), {(w, 0) for w in weights})
        out = _joined(forward, results | changed | cut.kept, ())
        back = _joined(backward, _left(region, versions, made_by), cut.again)
        return _held(out, back, versions, cut)

    def _nodes(self, steps: Iterable[Step], versions: Versions) -> list[Node]:
        return nodes_of(steps, self.operations, self.kernels, versions)


def _flat(pieces: Iterable[list[Node]]) -> list[Node]:
    return [node for piece in pieces for node in piece]


def _changed(versions: Versions) -> set[Value]:
    """What is left in storages of others that were written."""
    return {(s, versions.now[s]) for s in versions.foreign if versions.now[s]}


def _left(region: Region, versions: Versions, before: set[int]) -> set[Value]:
    """What backward leaves behind: gradients."""
    fresh = versions.now.keys() - before - versions.foreign - region.freed
    return _changed(versions) | {versions.of(storage) for storage in fresh}


def _joined(
    pieces: Sequence[list[Node]], needed: set[Value], again: Sequence[Node]
) -> list[Joined]:
    """Every piece; what later pieces read is needed after it, but what is computed ``again`` in each.

    Pieces that end with an exchange are one graph with the one after them, whose launches are divided where the
    exchanges are.
    """
    repeated = {value for node in again for value, _ in node.writes}
    joined: list[Joined] = []
    after = set(needed)
    for run in reversed(_runs(pieces)):
        whole = join([*again, *_flat(run)], after - repeated)
        divided = _divided(whole, run)
        if divided is None:  # exchanges in another order than they were recorded in
            for piece in reversed(run):
                alone = join([*again, *piece], after - repeated)
                joined.append(_without_exchanges(alone))
                after |= _read_by(piece)
        else:
            joined += reversed(divided)
            after |= _read_by(_flat(run))
    return joined[::-1]


def _runs(pieces: Sequence[list[Node]]) -> list[list[list[Node]]]:
    """Pieces between which there is nothing but exchanges."""
    runs: list[list[list[Node]]] = [[]]
    for piece in pieces:
        runs[-1].append(piece)
        if not _exchanges(piece):
            runs.append([])
    return [run for run in runs if run]


def _exchanges(piece: Sequence[Node]) -> bool:
    """Whether a piece ends with an exchange."""
    return bool(piece) and EXCHANGE in piece[-1].kernels


def _divided(whole: Joined, run: Sequence[list[Node]]) -> list[Joined] | None:
    """Launches up to each exchange, and those after the last one; None if exchanges are not in the run's order."""
    parts: list[list[Launch]] = [[]]
    order = []
    for launch in whole.launches:
        if launch.kernel == EXCHANGE:
            order.append(launch.writes)
            parts.append([])
        else:
            parts[-1].append(launch)
    exchanges = [piece[-1] for piece in run if _exchanges(piece)]
    if order != [tuple(value[0] for value, _ in each.writes) for each in exchanges]:
        return None
    if len(parts) > len(run):  # nothing was recorded after the last exchange
        *parts, rest = parts
        parts[-1] += rest
    of_rest = [Joined(tuple(part), frozenset()) for part in parts[1:]]
    return [Joined(tuple(parts[0]), whole.written), *of_rest]


def _without_exchanges(piece: Joined) -> Joined:
    launches = tuple(each for each in piece.launches if each.kernel != EXCHANGE)
    return Joined(launches, piece.written)


def _read_by(nodes: Iterable[Node]) -> set[Value]:
    return {read.value for node in nodes for read in node.reads}


def _held(
    forward: Sequence[Joined],
    backward: Sequence[Joined],
    versions: Versions,
    cut: Partition,
) -> Compiled:
    early = frozenset(storage for piece in forward for storage in piece.written)
    later = frozenset(storage for piece in backward for storage in piece.written)
    own = versions.now.keys() - versions.foreign
    kept = frozenset(value[0] for value in cut.kept)
    repeated = {value[0] for node in cut.again for value, _ in node.writes}
    again = repeated - kept  # a storage that was written twice may be kept in between
    return Compiled(
        tuple(piece.launches for piece in forward),
        tuple(piece.launches for piece in backward),
        frozenset(own - early - later),
        frozenset(again & early),
        frozenset(again & later),
        kept,
    )


# -- regions alike -----------------------------------------------------------------------------


def _names(region: Region) -> dict[int, int]:
    """Storages by the order in which they appear; the host's stays 0."""
    names = {0: 0}
    for pieces in (region.forward, region.backward):
        for steps in pieces:
            for storage in storages(steps):
                names.setdefault(storage, len(names))
    return names


def _renamed(region: Region, names: Mapping[int, int]) -> Region:
    def steps(piece: Iterable[Step]) -> list[Step]:
        return [
            Step(
                step.operation,
                tuple((names[storage], offset) for storage, offset in step.reads),
                tuple((names[storage], offset) for storage, offset in step.writes),
            )
            for step in piece
        ]

    return Region(
        [steps(piece) for piece in region.forward],
        [steps(piece) for piece in region.backward],
        [names[s] for s in region.results if s in names],
        {names[s] for s in region.freed if s in names},
    )


def _key(region: Region, weights: frozenset[int]) -> object:
    return (
        tuple(map(tuple, region.forward)),
        tuple(map(tuple, region.backward)),
        tuple(region.results),
        frozenset(region.freed),
        weights,
    )
