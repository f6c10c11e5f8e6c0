"""Aligns the clocks of the ranks of a job: a collective ends on all of them together."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.traces.collectives import SYNCHRONISING
from prestep.workloads.traces.work import Meeting, Work

# Clocks of one run are aligned on collectives, but these many seconds apart they were never one run.
APART = 3600.0


def align(works: list[Work], meetings: list[Meeting], notes: Counter[str]) -> None:
    """Moves the clocks so that collectives end together."""
    offset = _offsets(works, _clock_differences(meetings))
    _related(works, meetings, set(offset))
    largest = max(map(abs, offset.values()))
    if largest > APART:
        raise InputError(of_different_runs(works, f"clocks {largest:.0f} s apart"))
    notes["ranks whose clocks were moved by more than 10 us"] += sum(
        abs(o) > 1e-5 for o in offset.values()
    )
    unreached = len(works) - len(offset)
    notes["ranks without a collective in common with the others"] += unreached
    for work in works:
        if offset.get(work.rank):
            work.shift(offset[work.rank])


def _clock_differences(meetings: list[Meeting]) -> dict[tuple[int, int], list[float]]:
    """How much later every pair of ranks saw the same ends."""
    differences = _end_differences([m for m in meetings if m.op in SYNCHRONISING])
    # A sender may be done before its receiver comes, so transfers move clocks only where one arrives before it is sent.
    sends = [m for m in meetings if m.op == "send"]
    early = {
        (rank, other)
        for m in sends
        if _before_sent(m)
        for rank, _ in m.members
        for other, _ in m.members
    }
    for pair, seen in _end_differences(sends).items():
        differences.setdefault(pair, seen if pair in early else [0.0])
    return differences


def _offsets(
    works: list[Work], differences: dict[tuple[int, int], list[float]]
) -> dict[int, float]:
    """What to add to the clock of every rank that is reached from the first over common meetings."""
    offset = {works[0].rank: 0.0}
    reached = [works[0].rank]
    for rank in reached:
        for work in works:
            pair = rank, work.rank
            if work.rank not in offset and pair in differences:
                offset[work.rank] = offset[rank] + median(differences[pair])
                reached.append(work.rank)
    return offset


def _before_sent(meeting: Meeting) -> bool:
    """Whether a receive ended before its send began: then the clocks differ."""
    times = dict(meeting.members)
    send, receive = (times.get(rank) for rank in meeting.ranks)
    return send is not None and receive is not None and receive.end < send.start


def _end_differences(meetings: list[Meeting]) -> dict[tuple[int, int], list[float]]:
    pairs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for meeting in meetings:
        for rank, op in meeting.members:
            for other, same in meeting.members:
                if rank != other:
                    pairs[rank, other].append(op.end - same.end)
    return pairs


def _related(works: list[Work], meetings: list[Meeting], reached: set[int]) -> None:
    """Ranks that should have met a recorded one but never did, or were not at work at its time, are strangers."""
    first = works[0]
    for work in works:
        if work.rank in reached:
            continue
        own = [m for m in meetings if any(rank == work.rank for rank, _ in m.members)]
        if any(rank in m.ranks for m in own for rank in reached):
            raise InputError(
                of_different_runs([first, work], "no collective in common")
            )
        if (
            work.steps[0][1] > first.steps[-1][2]
            or first.steps[0][1] > work.steps[-1][2]
        ):
            raise InputError(
                of_different_runs([first, work], "steps at different times")
            )


def of_different_runs(works: list[Work], found: str) -> Mistake:
    listed = ", ".join(f"{work.rank} ({Path(work.path).name})" for work in works[:4])
    ranks = listed + (f" and {len(works) - 4} more" if len(works) > 4 else "")
    return Mistake(
        f"ranks {ranks}",
        "",
        found,
        "traces of one run",
        "give the files of one run only",
    )
