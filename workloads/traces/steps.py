"""The steps of a recorded run: what marks them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from prestep.workloads.traces.schema import Span

PROFILED = "ProfilerStep"
# Ranges that people name like steps: "train_step 3", "Iteration #7", "step:12".
NAMED = re.compile(
    r"^(ProfilerStep#|(train(ing)?[ _])?(step|iter(ation)?)[ _#:]*\d+)", re.IGNORECASE
)
WHOLE = "trace"

Step = tuple[str, float, float]


def steps_of(
    rows: Sequence[Span], timeline: Sequence[Span], notes: Counter[str]
) -> list[Step]:
    """Steps (name, start, end) of a rank, s: the profiler's, else ranges named like steps, else the whole recording.

    They are those of one thread. A step without a length ends where the next begins, or with the recording.
    """
    last = max(row.end for row in timeline)
    marked = [row for row in rows if row.name.startswith(PROFILED)]
    if not rows:
        return [(WHOLE, min(row.start for row in timeline), last)]
    if not marked:
        notes["steps told by names of ranges, as the profiler marked none"] += 1
    ranges = _of_busiest_thread(marked or rows)
    nexts = [*(row.start for row in ranges[1:]), last]
    notes["steps without a length, ended where the next begins"] += sum(
        row.end <= row.start for row in ranges
    )
    return [
        (row.name, row.start, row.end if row.end > row.start else following)
        for row, following in zip(ranges, nexts, strict=True)
    ]


def _of_busiest_thread(rows: Sequence[Span]) -> list[Span]:
    thread = Counter(row.stream for row in rows).most_common(1)[0][0]
    return [row for row in rows if row.stream == thread]
