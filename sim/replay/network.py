"""Communication of a replay: as it was recorded, or planned on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.graph.opgraph import Comm
from prestep.topologies.fabric import Fabric
from prestep.workloads.traces.replay import Replay
from prestep.workloads.traces.work import Meeting

# Collectives of this size are bound by bandwidth, bytes.
LARGE = 1 << 20
# A transfer longer than this factor of what it should take has waited for a rank that was not recorded; kernels beside
# it slow a transfer by up to about a fifth.
LATE = 1.25


def plans_of(
    replay: Replay,
    fabric: Fabric | None,
    before: Fabric | None,
    nccl: Nccl,
    held: int = 0,
) -> tuple[tuple[Plan, ...], int]:
    """A plan for every communication, and how many were played as recorded because their size is not known.

    On a `fabric`, or (None) as recorded with the SMs of `held` channels; `before` is the fabric without changes.
    """
    pairs = list(zip(replay.graph.comms, replay.meetings, strict=True))
    if fabric is None or before is None:
        return tuple(as_recorded(c, m.duration, held) for c, m in pairs), 0
    network = _Network(replay, fabric, before, nccl, _Shortest.of(replay.meetings))
    plans = tuple(network.plan(comm, meeting) for comm, meeting in pairs)
    unknown_sizes = sum(_of_several(c) and c.size <= 0 for c, _ in pairs)
    return plans, unknown_sizes


def _of_several(comm: Comm) -> bool:
    return len(comm.groups[0]) > 1


@dataclass(frozen=True, eq=False)
class _Network:
    """Plays recorded communication on a fabric; `before` is the same without changes."""

    replay: Replay
    fabric: Fabric
    before: Fabric
    nccl: Nccl
    shortest: _Shortest

    def plan(self, comm: Comm, meeting: Meeting) -> Plan:
        if not _of_several(comm) or comm.size <= 0:
            return as_recorded(comm, meeting.duration)
        late = self._late(comm, meeting)
        planned = self._on(self.fabric, comm)
        if late is None:
            return planned
        return replace(planned, latency=planned.latency + late)

    def _late(self, comm: Comm, meeting: Meeting) -> float | None:
        """Seconds by which ranks that were not recorded come later than the others, as they would again; None: not."""
        if not meeting.members or not meeting.missing:
            return None
        idle = self._on(self.before, comm).duration(self.before.links.bandwidth)
        expected = max(self.shortest.duration(meeting), idle)
        if meeting.duration <= LATE * expected:
            return None
        # Who is late by its kernels or host catches up while transfers take longer than they did.
        now = self._on(self.fabric, comm).duration(self.fabric.links.bandwidth)
        longer = max(0.0, now - expected)
        return max(0.0, meeting.duration - expected - longer)

    def _on(self, fabric: Fabric, comm: Comm) -> Plan:
        """A communication among its ranks.

        NCCL chooses the channels of a transfer by the size of its communicator: the peers are named after the pair.
        """
        ranks = list(comm.groups[0])
        if comm.op == "send":
            world = self.replay.draft.world
            ranks += [rank for rank in range(world) if rank not in comm.groups[0]]
        members = [fabric.gpus[rank] for rank in ranks]
        return plan_collective(
            comm.op, comm.size, members, fabric, self.nccl, comm.in_place
        )


def as_recorded(comm: Comm, duration: float, channels: int = 0) -> Plan:
    """A communication of fixed length that uses no link, and the SMs of so many channels."""
    none = np.zeros(0)
    ranks = tuple(map(str, comm.groups[0]))
    return Plan(
        comm.op,
        0.0,
        ranks,
        "recorded",
        "",
        channels,
        duration,
        none.astype(int),
        none,
        1.0,
        "measured",
    )


@dataclass(frozen=True)
class _Shortest:
    """Shortest times that a job's collectives of a kind took, by size: there nobody was waited for."""

    alike: Mapping[tuple[object, ...], float]
    rate: Mapping[tuple[object, ...], float]

    @classmethod
    def of(cls, meetings: Sequence[Meeting]) -> _Shortest:
        alike: dict[tuple[object, ...], float] = {}
        rate: dict[tuple[object, ...], float] = {}
        for m in meetings:
            same, kind = (m.op, m.ranks, m.size), (m.op, m.ranks)
            alike[same] = min(alike.get(same, m.duration), m.duration)
            if m.size >= LARGE and m.duration > 0:
                rate[kind] = max(rate.get(kind, 0.0), m.size / m.duration)
        return cls(alike, rate)

    def duration(self, m: Meeting) -> float:
        """Seconds of a collective for which nobody is waited."""
        shortest = self.alike[m.op, m.ranks, m.size]
        rate = self.rate.get((m.op, m.ranks), 0.0)
        if m.size < LARGE or rate <= 0:
            return shortest
        return min(shortest, m.size / rate)
