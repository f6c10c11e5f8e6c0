"""Forward and backward of a compiled function together: what each launches, and what lies in memory between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Step, Versions
from prestep.workloads.fusion.group import Launch
from prestep.workloads.fusion.join import join
from prestep.workloads.fusion.nodes import nodes_of
from prestep.workloads.fusion.partition import partition
from prestep.workloads.operation import Operation


@dataclass(frozen=True)
class Function:
    """A function that is compiled, with its backward.

    Attributes
    ----------
    operations, kernels
        What steps are, and what each launches without a compiler.
    forward, backward
        Its steps.
    results, gradients
        Storages that it returns, and those that its backward does.
    lasting
        Storages that are in memory all the time: weights.
    keeps
        Storages that are kept, while all else is computed again; None: whichever are cheapest.
    """

    operations: Sequence[Operation]
    kernels: Sequence[tuple[Kernel, ...]]
    forward: Sequence[Step]
    backward: Sequence[Step]
    results: Sequence[int]
    gradients: Sequence[int]
    lasting: Collection[int]
    keeps: Collection[int] | None = None


@dataclass(frozen=True)
class Joint:
    """What a compiled function launches and holds.

    Attributes
    ----------
    forward, backward
        Its launches.
    results, gradients
        Where what it returns is, and what its backward does: two may be one, or what it was given.
    kept
        Storages that backward finds, of what forward was given or made.
    sizes
        Bytes of what it makes.
    """

    forward: tuple[Launch, ...]
    backward: tuple[Launch, ...]
    results: tuple[int, ...]
    gradients: tuple[int, ...]
    kept: frozenset[int]
    sizes: dict[int, float]


def compile_function(f: Function) -> Joint:
    """Fuses the operations of a function and of its backward, and cuts what lies between them."""
    versions = Versions()
    forward = nodes_of(f.forward, f.operations, f.kernels, versions)
    results = [versions.of(storage) for storage in f.results]
    known = set(versions.now)
    backward = nodes_of(f.backward, f.operations, f.kernels, versions)
    gradients = [versions.of(storage) for storage in f.gradients]
    lasting = {(s, 0) for s in f.lasting}
    cut = partition(forward, backward, lasting, f.keeps, results)
    early = join(forward, {*results, *cut.kept})
    late = join([*cut.again, *backward], gradients, cut.made)
    return Joint(
        early.launches,
        late.launches,
        tuple(storage for storage, _ in results),
        tuple(storage for storage, _ in gradients),
        frozenset(s for s, _ in cut.kept if s in known and s not in f.lasting),
        sizes_of((*forward, *backward)),
    )


def sizes_of(nodes: Iterable[Node]) -> dict[int, float]:
    """Bytes of storages that nodes write."""
    sizes: dict[int, float] = {}
    for node in nodes:
        for (storage, _), size in node.writes:
            sizes[storage] = max(size, sizes.get(storage, 0.0))
    return sizes
