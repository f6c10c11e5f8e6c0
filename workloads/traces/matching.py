"""Puts the ranks of a job together: which collectives are the same one, and how far their clocks are apart.

A recorded collective lasts from the rank's own arrival; it ends on all ranks together. So the time between the
last arrival and the end is the transfer, and what comes before is waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from statistics import median

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.traces.collectives import SYNCHRONISING, ranks_of
from prestep.workloads.traces.steps import WHOLE, Step
from prestep.workloads.traces.work import GPU, Meeting, Op, Work, fill_payloads

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


# Share of collectives that may contradict each other before the ranks are taken to be of different runs.
CONTRADICTING = 0.2
# The operator before a gather that has its input in its output.
IN_PLACE = "aten::_foreach_copy_"


def match(works: list[Work], world: int) -> tuple[list[Meeting], Counter[str]]:
    """Meetings of all ranks; sets `Op.comms`, aligns the clocks and cuts recorded ends to the common one.

    Raises
    ------
    InputError
        If the ranks have no collectives in common that could be those of one run.
    """
    notes: Counter[str] = Counter()
    meetings = _common(works, world, notes)
    timed = all(work.timed for work in works)
    if timed:
        align(works, meetings, notes)
        meetings = _checked(works, meetings, notes)
    for index, meeting in enumerate(meetings):
        for _, op in meeting.members:
            op.comms = (*op.comms, index)
    for meeting in meetings:
        _separate(meeting, notes)
        if not timed:
            meeting.duration = min(op.end - op.start for _, op in meeting.members)
    if timed:
        _common_ends(works, meetings)
    return meetings, notes


def _common(works: list[Work], world: int, notes: Counter[str]) -> list[Meeting]:
    """Meetings with all ranks that recorded them, in the order of their first record."""
    meetings: dict[tuple[object, ...], Meeting] = {}
    for work in works:
        fill_payloads(work.ops, world)
        for key, op, own in _keys(work, world):
            meeting = meetings.setdefault(key, own)
            if meeting.size != own.size and meeting.op == own.op:
                notes[
                    "collectives whose sizes differ between ranks (the largest is taken)"
                ] += 1
                meeting.size = max(meeting.size, own.size)
            meeting.members.append((work.rank, op))
    return list(meetings.values())


def _keys(work: Work, world: int) -> Iterator[tuple[tuple[object, ...], Op, Meeting]]:
    """What a rank takes part in, with a key that its peers find too."""
    count: Counter[tuple[object, ...]] = Counter()
    names = [name for name, _, _ in work.steps]
    operator = ""
    for op in work.ops:
        if op.kind != GPU:
            continue
        before, operator = operator, op.operator
        if not op.collective or op.step < 0:
            continue
        for ends, meeting in _meetings_of(op, before, work.rank, world):
            place = (names[op.step], *ends)
            count[place] += 1
            yield (*place, count[place]), op, meeting


def _meetings_of(
    op: Op, before: str, rank: int, world: int
) -> Iterator[tuple[tuple[object, ...], Meeting]]:
    """Transfers or the collective of one kernel, each with what tells it from others of its step."""
    if op.collective == "p2p":
        for transfer in _transfers(op, rank):
            yield (transfer.ranks,), transfer
        return
    meeting = _collective(op, rank, world)
    # FSDP copies its shard into the place it has in the gathered buffer (all_gather_copy_in).
    meeting.in_place = op.collective == "all_gather" and before == IN_PLACE
    group = op.group.partition(":")[2] or op.group
    yield (group, op.collective), meeting


def _transfers(op: Op, rank: int) -> Iterator[Meeting]:
    """Sends and receives of one kernel."""
    for part in op.peers.split(";"):
        peer, size = part[5:].split(":")
        sends = part.startswith("send")
        ends = (rank, int(peer)) if sends else (int(peer), rank)
        yield Meeting("send", float(size), ends, "pp", [], step=op.step)


def _collective(op: Op, rank: int, world: int) -> Meeting:
    ranks = ranks_of(op.group, world)
    if rank not in ranks:
        ranks = tuple(range(max(world, rank + 1)))
    return Meeting(op.collective, op.bytes, ranks, "dp", [], step=op.step)


def _checked(
    works: list[Work], meetings: list[Meeting], notes: Counter[str]
) -> list[Meeting]:
    """Meetings whose members can have met; the others are left as kernels of recorded length."""
    _buffered(meetings, notes)
    good, met, apart = [], 0, 0
    for meeting in meetings:
        if len(meeting.members) > 1:
            met += 1
            apart += meeting.begin > meeting.done
        if meeting.begin <= meeting.done:
            good.append(meeting)
        else:
            notes[
                "collectives that the recorded times keep apart, played as recorded"
            ] += 1
    if met and apart > max(2.0, CONTRADICTING * met):
        raise InputError(
            of_different_runs(
                works, f"{apart} of {met} common collectives that cannot have met"
            )
        )
    return good


def _buffered(meetings: list[Meeting], notes: Counter[str]) -> None:
    """Sends that end before their receiver arrives show how much NCCL's buffers hold; up to that, none waits for it."""
    ends = []
    for meeting in meetings:
        by_rank = dict(meeting.members)
        if meeting.op == "send" and len(by_rank) == 2:
            ends.append((meeting, by_rank[meeting.ranks[0]], by_rank[meeting.ranks[1]]))
    largest = max(
        (m.size for m, send, receive in ends if send.end < receive.start), default=-1.0
    )
    for meeting, send, _ in ends:
        if meeting.size <= largest and send.start <= meeting.done:
            meeting.sender = meeting.ranks[0]
            notes["sends that do not wait for their receiver"] += 1


def _separate(meeting: Meeting, notes: Counter[str]) -> None:
    """Transfer time of a meeting: from the last arrival to the first end."""
    meeting.duration = meeting.done - meeting.begin
    if meeting.missing:
        notes[
            "collectives with ranks that were not recorded (taken to arrive with the others)"
        ] += 1
    if len(meeting.members) == 1 and len(meeting.ranks) > 1:
        notes[
            "collectives of one recorded rank: waiting and transfer are not told apart"
        ] += 1


def _common_ends(works: list[Work], meetings: list[Meeting]) -> None:
    """A communication ends for all its members at once; what a rank took longer belongs to what follows."""
    ends = [meeting.done for meeting in meetings]
    for work in works:
        for op in work.ops:
            if op.comms:
                op.end = max([op.start, *(ends[c] for c in op.comms)])
            elif op.kind == GPU and op.end == inf:
                raise InputError.of(
                    f"rank {work.rank}", op.name, "no end", "a finite end"
                )
