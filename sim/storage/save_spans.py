"""A save on the timeline: what training waits for, then what a writer does beside the steps that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prestep.sim.analysis.timeline import SAVE, WRITER, Timeline
from prestep.sim.storage.saving import Save, Work

WAIT = "wait for the checkpoint"


def spans_of(
    save: Save, represents: Mapping[int, Sequence[int]], begin: float, step: int
) -> Timeline:
    """The spans of a save for every simulated rank.

    Parameters
    ----------
    represents
        The ranks that each simulated one stands for.
    begin
        Seconds of the run at which the step before the save has ended on all ranks.
    step
        Number of that step.

    Examples
    --------
    >>> copied = Work("copy", 0.0, 2.0, 8e9, True)
    >>> save = Save(2.0, 2.0, 2.0, 0.0, {}, [], {0: (copied,)}, (0,))
    >>> spans_of(save, {0: (0,), 1: (1,)}, 5.0, 2)["name"].tolist()
    ['checkpoint copy', 'wait for the checkpoint']
    """
    rows = [
        (rank, work)
        for rank, members in represents.items()
        for work in _works_of(save, members)
    ]
    return Timeline.build(
        rank=[rank for rank, _ in rows],
        stream=[SAVE if work.blocks else WRITER for _, work in rows],
        kind="host",  # its thread waits for the copy, and a stream of its own would pass for one of the step
        name=[_name(work) for _, work in rows],
        phase="checkpoint",
        step=step,
        start=[begin + work.start for _, work in rows],
        end=[begin + work.end for _, work in rows],
        bytes=[work.size for _, work in rows],
    )


def _name(work: Work) -> str:
    if work.name == WAIT:
        return WAIT
    return f"checkpoint {work.name}"


def _works_of(save: Save, members: Sequence[int]) -> Iterator[Work]:
    """What ranks that are alike do: they write, and wait until the last one lets training go on."""
    works: Sequence[Work] = ()
    if any(rank in save.writers for rank in members):
        # Of many hosts only the first one's writers are simulated: others do the same.
        simulated = [rank for rank in members if rank in save.works]
        works = save.works[simulated[0] if simulated else next(iter(save.works))]
    yield from (work for work in works if work.end > work.start)
    blocked = max([0.0, *(work.end for work in works if work.blocks)])
    if save.stall > blocked:
        yield Work(WAIT, blocked, save.stall, 0.0, True)
