"""The steps of a recorded run: what marks them, and which of one rank is which of another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.errors import InputError, Mistake

if TYPE_CHECKING:
    from workloads.traces.work import Row, Work

PROFILED = "ProfilerStep"
# Ranges that people name like steps: "train_step 3", "Iteration #7", "step:12".
NAMED = re.compile(
    r"^(ProfilerStep#|(train(ing)?[ _])?(step|iter(ation)?)[ _#:]*\d+)", re.IGNORECASE
)
WHOLE = "trace"
# Steps of two ranks are the same if they share this much of the longer one's time.
SHARED = 0.5

Step = tuple[str, float, float]


def steps_of(
    rows: Sequence[Row], every: Sequence[Row], notes: Counter[str]
) -> list[Step]:
    """Steps (name, start, end) of a rank, s: the profiler's, else ranges named like steps, else the whole recording.

    They are those of one thread. A step without a length ends where the next begins, or with the recording.
    """
    last = max(row.end for row in every)
    rows = [row for row in rows if row.name.startswith(PROFILED)] or rows
    if not rows:
        return [(WHOLE, min(row.start for row in every), last)]
    if not rows[0].name.startswith(PROFILED):
        notes["steps told by names of ranges, as the profiler marked none"] += 1
    thread = Counter(row.stream for row in rows).most_common(1)[0][0]
    rows = [row for row in rows if row.stream == thread]
    ends = [*(row.start for row in rows[1:]), last]
    notes["steps without a length, ended where the next begins"] += sum(
        row.end <= row.start for row in rows
    )
    return [
        (r.name, r.start, r.end if r.end > r.start else end)
        for r, end in zip(rows, ends, strict=True)
    ]


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
        raise InputError(
            Mistake("traces", "steps", found, "steps that all ranks recorded", hint)
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
