"""When a compiled graph's tensors are in memory: taken as they are written, given back after their last use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.join import Launch

#: A kernel that stands for what the program does itself: its shape is the number of the call.
CALL = "call"
#: Inductor's kernels, and collectives, which write in the place of what they read last, where that is as large.
IN_PLACE = "fused_", CALL


@dataclass(frozen=True)
class Issue:
    """A kernel that a graph launches, and the memory that comes and goes with it.

    Attributes
    ----------
    takes
        Storages that it writes, and their bytes.
    reuses
        Storages that it writes in the place of others.
    drops
        Those that nobody needs after it.
    """

    kernel: Kernel
    name: str
    takes: tuple[tuple[int, float], ...]
    reuses: tuple[tuple[int, int], ...]
    drops: tuple[int, ...]


def issues(
    launches: Sequence[Launch],
    sizes: Mapping[int, float],
    given: Collection[int],
    wanted: Collection[int],
) -> tuple[Issue, ...]:
    """Launches with the memory that they take and leave: ``given`` is there before, ``wanted`` stays."""
    last = {s: at for at, each in enumerate(launches) for s in touched(each)}
    there, issues = set(given), list[Issue]()
    for at, launch in enumerate(launches):
        fresh = [s for s in dict.fromkeys(launch.writes) if s not in there]
        over = [s for s in sorted(touched(launch)) if last[s] == at]
        over = [s for s in over if s not in wanted]
        reuses: list[tuple[int, int]] = []
        if launch.kernel.kind.startswith(IN_PLACE):
            own = [s for s in over if s not in given and s in sizes]
            for storage in fresh:
                same = [s for s in own if sizes[s] == sizes[storage]]
                same = [s for s in same if s in there]
                if same:
                    own.remove(same[0])
                    over.remove(same[0])
                    reuses.append((storage, same[0]))
        there.update(fresh)
        new = {storage for storage, _ in reuses}
        takes = tuple((s, sizes[s]) for s in fresh if s not in new)
        issues.append(
            Issue(launch.kernel, launch.name, takes, tuple(reuses), tuple(over))
        )
    return tuple(issues)


def touched(launch: Launch) -> set[int]:
    """Storages that a kernel reads or writes."""
    return {*launch.reads, *launch.writes}
