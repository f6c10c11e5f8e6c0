"""Why a run is stuck: who waits for whom, and the cycle in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prestep.sim.graph.opgraph import COMM, SYNC, Comm, OpGraph, Program

if TYPE_CHECKING:
    from prestep.sim.engine.rank import Rank
    from prestep.sim.engine.rendezvous import Meeting


class Head(NamedTuple):
    """The first unfinished operation of a stream of a simulated rank; waits of the host are a stream of their own."""

    rank: int  # position among the simulated ranks
    stream: int
    at: int  # operation, counted over steps


class _Waiting:
    """The state of a stuck run, read but not changed."""

    def __init__(
        self,
        graph: OpGraph,
        ranks: Sequence[Rank],
        meetings: Mapping[tuple[int, int], Meeting],
    ) -> None:
        self.graph, self.ranks, self.meetings = graph, ranks, meetings
        self.heads = {
            (head.rank, head.stream): head
            for r in range(len(ranks))
            for head in self._heads(r)
        }

    def _heads(self, r: int) -> list[Head]:
        """The first unfinished operation of each stream of a rank."""
        program, end = self.ranks[r].program, self.ranks[r].end
        heads: dict[int, Head] = {}
        for at, time in enumerate(end):
            stream = int(program.stream[at % len(program)])
            if time < 0 and stream not in heads:
                heads[stream] = Head(r, stream, at)
        return list(heads.values())

    def _head_of(self, r: int, at: int) -> Head:
        """The head that has to end first before operation `at` can."""
        program = self.ranks[r].program
        return self.heads[r, int(program.stream[at % len(program)])]

    def _host_of(self, head: Head) -> list[Head]:
        """The wait in which the host thread is before it launches this one."""
        p = self.ranks[head.rank].program
        waits = [
            other
            for (r, _), other in self.heads.items()
            if r == head.rank and other.at < head.at
        ]
        return [other for other in waits if p.kind[other.at % len(p)] == SYNC]

    def _unfinished(self, head: Head) -> list[int]:
        """Operations of the same rank that it waits for (event waits)."""
        rank = self.ranks[head.rank]
        n = len(rank.program)
        base = head.at // n * n
        return [
            base + d
            for d in rank.program.deps[head.at % n]
            if base + d >= 0 and rank.end[base + d] < 0
        ]

    def _missing(self, head: Head) -> list[tuple[Comm, list[tuple[int, int]]]]:
        """Communications of a head that peers have not come to, with (rank, operation) of those peers."""
        rank = self.ranks[head.rank]
        n = len(rank.program)
        step, i = divmod(head.at, n)
        if rank.program.kind[i] != COMM:
            return []
        incomplete = []
        for c in rank.program.parts[int(rank.program.payload[i])]:
            meeting = self.meetings.get((step, c))
            here = [id(r) for r in meeting.ranks] if meeting else []
            if len(here) < self.graph.comms[c].arrivals:
                away = [
                    (r, at)
                    for r, other in enumerate(self.ranks)
                    if id(other) not in here
                    for at in self._takes_part(r, c, step)
                ]
                incomplete.append((self.graph.comms[c], away))
        return incomplete

    def _takes_part(self, r: int, c: int, step: int) -> list[int]:
        """Operations of a rank, not ended, that are its side of a communication."""
        p = self.ranks[r].program
        return [
            step * len(p) + i
            for i in range(len(p))
            if p.kind[i] == COMM
            and c in p.parts[int(p.payload[i])]
            and self.ranks[r].end[step * len(p) + i] < 0
        ]

    def waits_for(self, head: Head) -> list[Head]:
        """Heads that must end, or start, before this one can go on."""
        awaited = [self._head_of(head.rank, at) for at in self._unfinished(head)]
        if not awaited:
            absent = [peer for _, away in self._missing(head) for peer in away]
            awaited = [self._head_of(r, at) for r, at in absent]
        if not awaited and self.ranks[head.rank].host.issued <= head.at:
            awaited = self._host_of(head)
        return [other for other in awaited if other != head]

    def describe(self, head: Head) -> str:
        """What a head is and what it waits for, in a line."""
        rank = self.ranks[head.rank]
        program = rank.program
        step, i = divmod(head.at, len(program))
        stream = self.graph.streams[head.stream]
        what = f"rank {program.rank}, stream {stream}: operation {i} ({program.names[i]}) of step {step}"
        if waits := self._unfinished(head):
            return f"{what} waits for operations {_listed(program, waits)}"
        if rank.host.issued <= head.at and program.kind[i] != SYNC:
            return f"{what} waits for its host thread to launch it"
        if missing := self._missing(head):
            peers = [self._describe_missing(comm, away) for comm, away in missing]
            return f"{what} waits for peers: {'; '.join(peers)}"
        return f"{what} waits for its stream"

    def _describe_missing(self, comm: Comm, away: list[tuple[int, int]]) -> str:
        """A communication, how many have come to it, and which ranks have not."""
        absent = {r for r, _ in away}
        arrived = comm.arrivals - len(absent) if away else comm.arrivals - 1
        peers = dict.fromkeys(f"rank {self.ranks[r].program.rank}" for r, _ in away)
        who = f"not there: {', '.join(peers)}" if peers else "nobody else takes part"
        where = f"{comm.op} of {comm.size:.0f} bytes in {comm.groups[0]}"
        return f"{where}: {arrived}/{comm.arrivals}; {who}"


def _listed(program: Program, operations: Sequence[int]) -> str:
    """Operations, counted over steps, by their numbers and names in a step."""
    numbers = [at % len(program) for at in operations]
    return ", ".join(f"{i} ({program.names[i]})" for i in numbers)


def explain(
    graph: OpGraph, ranks: Sequence[Rank], meetings: Mapping[tuple[int, int], Meeting]
) -> str:
    """The wait-for cycle, if there is one, then what the first unfinished operation of every stream waits for."""
    waiting = _Waiting(graph, ranks, meetings)
    lines = ["the run is stuck: no event is left, but these operations have not ended"]
    if cycle := _cycle(waiting):
        lines += [
            "they wait for each other in a cycle:",
            *(f"  {waiting.describe(head)}" for head in cycle),
        ]
    rest = [head for head in waiting.heads.values() if head not in cycle]
    if cycle and rest:
        lines.append("and behind them:")
    return "\n".join([*lines, *(f"  {waiting.describe(head)}" for head in rest)])


def _cycle(waiting: _Waiting) -> list[Head]:
    """Heads that wait for each other in a circle; none if there is no such circle."""
    import networkx as nx

    graph = nx.DiGraph(
        [
            (head, other)
            for head in waiting.heads.values()
            for other in waiting.waits_for(head)
        ]
    )
    try:
        return [head for head, _ in nx.find_cycle(graph)]
    except nx.NetworkXNoCycle:
        return []
