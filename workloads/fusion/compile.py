"""A region compiled: the kernels of its pieces, and which of its tensors are in memory when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Region, Step, Value, Versions, storages
from prestep.workloads.fusion.group import Launch
from prestep.workloads.fusion.join import Joined, join
from prestep.workloads.fusion.joint import sizes_of
from prestep.workloads.fusion.lifetimes import Issue, issues, touched
from prestep.workloads.fusion.nodes import EXCHANGE, nodes_of
from prestep.workloads.fusion.partition import partition
from prestep.workloads.operation import Operation


@dataclass(frozen=True)
class Compiled:
    """What a region launches and holds; storages are numbered as they appear, those of no tensor below 0.

    Attributes
    ----------
    forward, backward
        What each piece launches, with the memory that comes and goes.
    made
        Storages that the region takes itself.
    sizes
        Bytes of storages that it writes.
    given
        Those of others that it reads: in forward, and in backward.
    kept
        Those that stay for backward.
    results
        Storages that it leaves to the program, forward and backward, with the one where the value is.
    """

    forward: tuple[tuple[Issue, ...], ...]
    backward: tuple[tuple[Issue, ...], ...]
    made: frozenset[int]
    sizes: Mapping[int, float]
    given: tuple[frozenset[int], frozenset[int]]
    kept: frozenset[int]
    results: tuple[tuple[int, int], ...]


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

    def compile(
        self, region: Region, weights: Iterable[int]
    ) -> tuple[Compiled, dict[int, int]]:
        """A region compiled, and its storages' numbers there; ``weights`` are storages that are there all the time."""
        names = _names(region)
        alike = _renamed(region, names)
        there = frozenset(names[w] for w in weights if w in names)
        key = _key(alike, there)
        if key not in self._seen:
            self._seen[key] = self._compiled(alike, there)
        return self._seen[key], names

    def _compiled(self, region: Region, weights: frozenset[int]) -> Compiled:
        versions = Versions()
        forward = [self._nodes(piece, versions) for piece in region.forward]
        results = [versions.of(storage) for storage in region.results]
        changed = _changed(versions)
        made_by = set(versions.now)
        backward = [self._nodes(piece, versions) for piece in region.backward]
        there = {(w, 0) for w in weights}
        cut = partition(_flat(forward), _flat(backward), there, None, results)
        out = _joined(forward, {*results} | changed | cut.kept, ())
        left = _left(region, versions, made_by)
        gradients = [versions.of(storage) for storage in left]
        after = {*gradients} | _changed(versions)
        back = _joined(backward, after, cut.again, cut.made)
        nodes = [*_flat(forward), *_flat(backward)]
        # What an exchange writes, the program takes as it asks for that.
        sent = {v[0] for n in nodes if EXCHANGE in n.kernels for v, _ in n.writes}
        sizes = sizes_of(nodes)
        made = (versions.now.keys() | sizes.keys()) - versions.foreign - sent
        kept = {value[0] for value in cut.kept} & made_by - weights
        named = zip((*region.results, *left), (*results, *gradients), strict=True)
        pairs = tuple((storage, value) for storage, (value, _) in named)
        lasting = {s for _, s in pairs}
        early = {s for each in out for one in each.launches for s in touched(one)}
        later = {s for each in back for one in each.launches for s in touched(one)}
        given = frozenset(early - made), frozenset(later - made) | kept
        donated = (kept & made).difference(storage for storage, _ in results)
        return Compiled(
            _issued(out, sizes, given[0], lasting | kept),
            _issued(back, sizes, given[1], lasting, donated),
            frozenset(made),
            sizes,
            given,
            frozenset(kept),
            pairs,
        )

    def _nodes(self, steps: Iterable[Step], versions: Versions) -> list[Node]:
        return nodes_of(steps, self.operations, self.kernels, versions)


def _flat(pieces: Iterable[list[Node]]) -> list[Node]:
    return [node for piece in pieces for node in piece]


def _changed(versions: Versions) -> set[Value]:
    """What is left in storages of others that were written."""
    return {(s, versions.now[s]) for s in versions.foreign if versions.now[s]}


def _left(region: Region, versions: Versions, before: set[int]) -> list[int]:
    """Storages of its own that backward leaves behind: gradients."""
    return sorted(versions.now.keys() - before - versions.foreign - region.freed)


def _issued(
    pieces: Sequence[Joined],
    sizes: Mapping[int, float],
    given: Collection[int],
    wanted: Collection[int],
    donated: Collection[int] = (),
) -> tuple[tuple[Issue, ...], ...]:
    """What every piece launches, with the memory that comes and goes."""
    launches = [each for piece in pieces for each in piece.launches]
    every = iter(issues(launches, sizes, given, wanted, donated))
    return tuple(tuple(islice(every, len(piece.launches))) for piece in pieces)


def _joined(
    pieces: Sequence[list[Node]],
    needed: set[Value],
    again: Sequence[Node],
    freed: Mapping[Value, float] | None = None,
) -> list[Joined]:
    """Every piece; what later pieces read is needed after it, but what is computed ``again`` in each.

    Pieces that end with an exchange are one graph with the one after them, whose launches are divided where the
    exchanges are. ``freed``: as `join` has it, where a run has no
    exchanges, whose order is the program's.
    """
    repeated = {value for node in again for value, _ in node.writes}
    joined: list[Joined] = []
    after = set(needed)
    for run in reversed(_runs(pieces)):
        whole = join(
            [*again, *_flat(run)], after - repeated, freed if len(run) == 1 else None
        )
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
