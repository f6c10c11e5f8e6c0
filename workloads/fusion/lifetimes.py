"""When a compiled graph's tensors are in memory: taken as they are written, given back after their last use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.group import Launch

#: A kernel that stands for what the program does itself: its shape is the number of the call.
CALL = "call"


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
    donated: Collection[int] = (),
) -> tuple[Issue, ...]:
    """Launches with the memory that they take and leave: ``given`` is there before, ``wanted`` stays.

    ``donated``: what is given and may be written over, as backward may with what forward made for it alone
    (torch._functorch.config.donated_buffer, on since PyTorch 2.6).
    """
    last = {s: at for at, each in enumerate(launches) for s in touched(each)}
    there, issues = set(given), list[Issue]()
    free = sizes.keys() - (set(given) - set(donated))
    for at, launch in enumerate(launches):
        fresh = [s for s in dict.fromkeys(launch.writes) if s not in there]
        over = [s for s in sorted(touched(launch)) if last[s] == at]
        over = [s for s in over if s not in wanted]
        reuses: dict[int, int] = {}
        for new, old in _in_place(launch, fresh):
            possible = old in over and old in there and old in free
            if possible and new not in reuses and sizes[old] == sizes[new]:
                reuses[new] = old
                over.remove(old)
        there.update(fresh)
        takes = tuple((s, sizes[s]) for s in fresh if s not in reuses)
        pairs = tuple(reuses.items())
        issues.append(Issue(launch.kernel, launch.name, takes, pairs, tuple(over)))
    return tuple(issues)


def _in_place(launch: Launch, fresh: Sequence[int]) -> Iterator[tuple[int, int]]:
    """What a kernel could write in the place of what it reads.

    Inductor lets a node take the place of a buffer that no other node has yet to read, not even one of its own kernel
    (torch/_inductor/scheduler.py, decide_inplace_update). A collective takes any of what it was given.
    """
    if launch.kernel.kind == CALL:
        yield from ((new, old) for new in fresh for old in sorted(launch.reads))
        return
    yield from ((new, old) for new, old in launch.in_place if new in fresh)


def touched(launch: Launch) -> set[int]:
    """Storages that a kernel reads or writes."""
    return {*launch.reads, *launch.writes}
