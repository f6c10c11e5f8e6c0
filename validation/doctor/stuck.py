"""Ranks that hold others up, from dumps of PyTorch's flight recorder: who did not enter a collective, or comes last.

Each rank writes a dump of its own. An entry has the process group, the number of the collective in it
(`collective_seq_id`), and whether it ended (`state`; Gloo's stay scheduled and are `retired`). In a hang the ranks
that wait have an entry that did not end, and a rank that never came has none. Clocks of hosts are not compared: of a
collective that ended, the rank that took the shortest time came last, as it waited least.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.units import format_duration, percent

# Guesses: a rank is late that comes last to so many of the collectives, and whose peers wait for so much of their time.
MOSTLY, OF_THE_TIME = 0.5, 0.2
#: Collectives of a group that say who comes last.
FEWEST = 5
#: Numbers of ranks that are written out.
SHOWN = 8
#: Collectives whose ranks all have tensors of the same shape.
ALIKE = ("all_reduce", "allreduce", "_all_gather_base", "_reduce_scatter_base")
#: A message between two members of a group, by their places in it: `nccl:recv 1<-0`.
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")
#: What a watchdog says of a rank in a group: the last collective that it enqueued, and the last that ended; and which
#: one timed out. `[PG 1 Rank 0]`, in later releases of PyTorch `[PG ID 0 PG GUID 0(default_pg) Rank 0]`.
_WATCHDOG = re.compile(
    r"\[rank(\d+)\].*?\[PG (?:ID \S+ PG GUID )?([^\s(]+)(?:\((.*?)\))? Rank \d+\].*?"
    r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_TIMED_OUT = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")
_DECLARED = schemas_beside(
    __file__, none=lambda delays: not delays, all=lambda delays: delays
)
DELAY = _DECLARED["delay"]
SCHEMA = _DECLARED["schema"]


@dataclass(frozen=True)
class Entry:
    """One collective on one rank; `seconds` is 0 where it was not timed."""

    name: str
    sizes: str
    ended: bool
    started: bool
    seconds: float


@dataclass(frozen=True)
class Dump:
    """What one rank recorded.

    Attributes
    ----------
    entries : mapping
        Its collectives by process group and number.
    messages : mapping
        The first message of each group that did not end: its number, the peer's place in the group, and its name.
    members, titles : mapping
        Ranks of each group that it knows, and what the group is called.
    """

    rank: int
    entries: Mapping[str, Mapping[int, Entry]]
    messages: Mapping[str, tuple[int, int, str]]
    members: Mapping[str, tuple[int, ...]]
    titles: Mapping[str, str]


@dataclass(frozen=True)
class Delay:
    """Ranks that hold up a process group.

    Attributes
    ----------
    group : str
        The process group, with its description.
    number : int
        Of the collective in the group; 0: of most of them.
    ranks : tuple of int
        Those that hold it up; none where all entered it.
    what : str
        What they did.
    waiting : tuple of int
        Those that wait for them.
    hangs : bool
        Whether it never ended; else it ends late.
    """

    group: str
    number: int
    ranks: tuple[int, ...]
    what: str
    waiting: tuple[int, ...]
    hangs: bool = True

    def __str__(self) -> str:
        of = f"collective {self.number} of {self.group}" if self.number else self.group
        whose = named(self.ranks) if self.ranks else "no single rank"
        return f"{whose}: {of}: {self.what}; {named(self.waiting)} waiting"


def named(ranks: Sequence[int]) -> str:
    """Ranks in words.

    Examples
    --------
    >>> named([3])
    'rank 3'
    >>> named(range(100))
    'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more'
    """
    first = ", ".join(map(str, ranks[:SHOWN]))
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{more}"


def dump_of(path: Path, content: Mapping[str, Any]) -> Dump | None:
    """What a dump says of its rank, the last number of its file's name as PyTorch writes it; None without a number."""
    numbers = re.findall(r"\d+", path.stem if path.suffix == ".json" else path.name)
    if not numbers:
        return None
    entries: dict[str, dict[int, Entry]] = {}
    messages: dict[str, tuple[int, int, str]] = {}
    titles: dict[str, str] = {}
    for one in content["entries"]:
        name, description = one["process_group"]
        titles[name] = f"process group {name} ({description})"
        message = _MESSAGE.search(one["profiling_name"])
        if message and not _entry(one).ended:
            which = one.get("p2p_seq_id", 0), int(message[3]), message[1]
            messages.setdefault(name, which)
        if not (message or one.get("is_p2p")) and "collective_seq_id" in one:
            entries.setdefault(name, {})[one["collective_seq_id"]] = _entry(one)
    members = {
        name: tuple(int(rank) for rank in re.findall(r"\d+", str(group["ranks"])))
        for name, group in content["pg_config"].items()
    }
    return Dump(int(numbers[-1]), entries, messages, members, titles)


def dumps_of_log(text: str) -> list[Dump]:
    """The ranks whose watchdogs speak in a log, as far as their lines say: numbers of collectives, no shapes.

    Examples
    --------
    >>> line = "[rank{0}]: [PG ID 0 PG GUID 0(default_pg) Rank {0}] last enqueued work: {1}, last completed work: 6"
    >>> log = [line.format(rank, last) for rank, last in ((0, 7), (1, 6), (2, 7))]
    >>> print(*delays(dumps_of_log(chr(10).join(log))))
    rank 1: collective 7 of process group 0 (default_pg): did not enter it (a collective); ranks 0, 2 waiting
    """
    names = {int(seq): op.lower() for seq, op in _TIMED_OUT.findall(text)}
    entries: dict[int, dict[str, dict[int, Entry]]] = {}
    titles: dict[str, str] = {}
    for rank, group, title, enqueued, completed in _WATCHDOG.findall(text):
        last, ended = int(enqueued), int(completed)
        titles[group] = f"process group {group}" + (f" ({title})" if title else "")
        entries.setdefault(int(rank), {})[group] = {
            number: Entry(
                names.get(number, "a collective"), "", number <= ended, True, 0.0
            )
            for number in range(max(ended, 0), last + 1)
        }
    return [Dump(rank, groups, {}, {}, titles) for rank, groups in entries.items()]


def _entry(one: Mapping[str, Any]) -> Entry:
    state = one.get("state", "")
    backend, _, name = one["profiling_name"].rpartition(":")
    ended = state == "completed" or (backend == "gloo" and one.get("retired"))
    return Entry(
        name,
        f"{one['input_sizes']} {one['input_dtypes']}",
        bool(ended),
        state != "scheduled",
        (one.get("duration_ms") or 0.0) * 1e-3,
    )


def delays(dumps: Sequence[Dump]) -> tuple[Delay, ...]:
    """What holds the job up: hangs, the first causes of them alone; of a job that runs, ranks that come late."""
    hanging = [delay for group in _groups(dumps) if (delay := _hang(group, dumps))]
    hanging += _unanswered(dumps)
    waiting = {rank for delay in hanging for rank in delay.waiting}
    # A rank that did not come because it waits elsewhere is not to blame: what it waits for is.
    free = (tuple(rank for rank in one.ranks if rank not in waiting) for one in hanging)
    first = [
        replace(one, ranks=ranks)
        for one, ranks in zip(hanging, free, strict=True)
        if ranks or not one.ranks
    ]
    late = (_late(group, dumps) for group in _groups(dumps))
    return tuple(first or hanging or filter(None, late))


def _groups(dumps: Sequence[Dump]) -> list[str]:
    return sorted({name for dump in dumps for name in dump.entries})


def _title(group: str, dumps: Sequence[Dump]) -> str:
    return next(dump.titles[group] for dump in dumps if group in dump.titles)


def _members(group: str, dumps: Sequence[Dump]) -> set[int]:
    """The ranks of a group by what the dumps say; without that, those that have entries of it."""
    told = {rank for dump in dumps for rank in dump.members.get(group, ())}
    return told or {dump.rank for dump in dumps if group in dump.entries}


def _hang(group: str, dumps: Sequence[Dump]) -> Delay | None:
    """Who holds up the first collective of a group that did not end; None where all ended."""
    members = _members(group, dumps)
    ours = {dump.rank: dump.entries.get(group, {}) for dump in dumps}
    ours = {rank: entries for rank, entries in ours.items() if rank in members}
    open_ = [
        number
        for entries in ours.values()
        for number, entry in entries.items()
        if not entry.ended
    ]
    if not open_:
        return None
    number, title = min(open_), _title(group, dumps)
    inside = {r: e[number] for r, e in ours.items() if number in e}
    waiting = tuple(sorted(r for r, one in inside.items() if not one.ended))
    absent = {r for r, e in ours.items() if max(e, default=0) < number}
    silent = members - ours.keys()
    if absent or silent:
        what = f"did not enter it ({inside[waiting[0]].name})"
        if not absent:
            what = (
                f"left no dump, and may not have entered it ({inside[waiting[0]].name})"
            )
        return Delay(title, number, tuple(sorted(absent or silent)), what, waiting)
    return Delay(title, number, *_among(inside), waiting)


def _unanswered(dumps: Sequence[Dump]) -> Iterator[Delay]:
    """Messages between pipeline stages that did not end: their peers hold the ranks up that sent or await them."""
    for dump in dumps:
        for group, (number, place, name) in dump.messages.items():
            members = sorted(_members(group, dumps) or {one.rank for one in dumps})
            if place < len(members):
                side = "receive" if name == "send" else "send"
                what = f"did not {side} message {number}"
                peer = (members[place],)
                yield Delay(_title(group, dumps), 0, peer, what, (dump.rank,))


def _among(inside: Mapping[int, Entry]) -> tuple[tuple[int, ...], str]:
    """Who holds up a collective that all ranks entered: those that run another one, or have not begun on the GPU."""
    name, many = Counter(one.name for one in inside.values()).most_common(1)[0]
    others = tuple(sorted(r for r, one in inside.items() if one.name != name))
    if others:
        theirs = inside[others[0]].name
        return others, f"entered {theirs} where {many} ranks entered {name}"
    sizes, many = Counter(one.sizes for one in inside.values()).most_common(1)[0]
    others = tuple(sorted(r for r, one in inside.items() if one.sizes != sizes))
    if others and name in ALIKE:
        theirs = inside[others[0]].sizes
        return others, f"entered {name} with {theirs} where {many} ranks have {sizes}"
    queued = tuple(sorted(r for r, one in inside.items() if not one.started))
    if queued and len(queued) < len(inside):
        return (
            queued,
            f"called {name}, and their GPUs did not begin it: a kernel before it does not end",
        )
    why = "the network or a GPU (Xid in dmesg, NCCL WARN lines)"
    return (), f"all ranks that left a record entered {name} and it did not end: {why}"


def _late(group: str, dumps: Sequence[Dump]) -> Delay | None:
    """The rank that comes last to most collectives of a group that were timed on all of its ranks."""
    ours = {d.rank: d.entries[group] for d in dumps if group in d.entries}
    timed = [
        {rank: entries[number].seconds for rank, entries in ours.items()}
        for number in sorted(set.intersection(*map(set, ours.values())))
        if all(entries[number].seconds > 0 for entries in ours.values())
    ]
    if len(ours) < 2 or len(timed) < FEWEST:
        return None
    last = Counter(min(times, key=lambda rank: times[rank]) for times in timed)
    rank, often = last.most_common(1)[0]
    shares = [*_waits(timed, rank)]
    waits = statistics.median(shares)
    if often < MOSTLY * len(timed) or waits < OF_THE_TIME:
        return None
    seconds = sum(statistics.median(times.values()) - times[rank] for times in timed)
    what = (
        f"comes last to {often} of {len(timed)} collectives, and the others wait {percent(waits)} of their time "
        f"for it ({format_duration(max(seconds, 0.0))} in all)"
    )
    others = tuple(sorted(ours.keys() - {rank}))
    return Delay(_title(group, dumps), 0, (rank,), what, others, hangs=False)


def _waits(timed: Sequence[Mapping[int, float]], rank: int) -> Iterator[float]:
    """Of each collective, the share of the others' time that they wait for a rank."""
    for times in timed:
        others = statistics.median(time for one, time in times.items() if one != rank)
        yield 1.0 - times[rank] / others
