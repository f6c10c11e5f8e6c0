"""Which step of one rank is which of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prestep.sim.errors import InputError
from prestep.workloads.traces.steps import WHOLE, Step
from prestep.workloads.traces.work import Work

# Steps of two ranks are the same if they share this much of the longer one's time.
SHARED = 0.5


def pair(works: Sequence[Work]) -> Counter[str]:
    """Makes the same steps of all ranks have the same name: by their names, or by time where those do not fit.

    Raises
    ------
    InputError
        If a rank has no step in common with the first.
    """
    notes: Counter[str] = Counter()
    first = works[0]
    strangers: list[Work] = []
    for work in works[1:]:
        names = {name for name, _, _ in first.steps} & {
            name for name, _, _ in work.steps
        }
        together = _together(first.steps, work.steps)
        if together and not any(a == b for a, b in together):
            work.rename({mine: theirs for theirs, mine in together})
            notes[
                f"steps of ranks that are named otherwise than rank {first.rank}'s, paired by time"
            ] += len(together)
        elif not names:
            strangers.append(work)
    if strangers:
        found = "; ".join(
            f"rank {w.rank}: {_listed(w.steps)}" for w in (first, *strangers)
        )
        hint = "record the same steps on every rank (the same schedule of the profiler), or leave ranks out"
        raise InputError.of(
            "traces", "steps", found, "steps that all ranks recorded", hint
        )
    return notes


def _listed(steps: Sequence[Step]) -> str:
    names = [name if name != WHOLE else "none marked" for name, _, _ in steps]
    return ", ".join(names[:4]) + (
        f" and {len(names) - 4} more" if len(names) > 4 else ""
    )


def _together(one: Sequence[Step], other: Sequence[Step]) -> list[tuple[str, str]]:
    """Names of steps that were at the same time; none if that is not one to one."""
    found = [
        (a, b)
        for a, start, end in one
        for b, begin, finish in other
        if min(end, finish) - max(start, begin)
        > SHARED * max(end - start, finish - begin)
    ]
    unique = len({a for a, _ in found}) == len({b for _, b in found}) == len(found)
    return found if unique else []
