"""Puts the ranks of a job together: which collectives are the same one, and how far their clocks are apart.

A recorded collective lasts from the rank's own arrival; it ends on all ranks together. So the time between the
last arrival and the end is the transfer, and what comes before is waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from prestep.sim.errors import InputError
from prestep.workloads.traces.clocks import align, of_different_runs
from prestep.workloads.traces.collectives import ranks_of
from prestep.workloads.traces.work import GPU, Meeting, Op, Work, fill_payloads

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
