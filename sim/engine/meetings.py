"""The communications of a run: a rank waits for free SMs, then for its peers, then for the bytes.

Kernels of one communicator run one after the other, as NCCL orders them; those of different ones side by side, each
with SMs of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import simpy

from sim.engine.execution import Timed
from sim.engine.fluid import Network
from sim.engine.rendezvous import Meeting, Rank
from sim.graph.opgraph import Comm, Communicator

if TYPE_CHECKING:
    from sim.collectives.plan import Plan


class Meetings:
    """Every communication of every step; the first rank that comes to one opens it."""

    def __init__(self, timed: Timed, network: Network) -> None:
        self.timed, self.network = timed, network
        self.opened: dict[tuple[int, int], Meeting] = {}
        self._stages = {id(plan): stages_of(plan) for plan in timed.plans}

    def communicate(
        self, rank: Rank, g: int, step: int, comms: tuple[int, ...]
    ) -> Generator[Any, Any, None]:
        """Runs operation `g` of a rank, which takes part in `comms` at once."""
        joined = frozenset(self.timed.graph.comms[c].communicator for c in comms)
        if self.timed.exclusive:
            copied = all(self.timed.graph.comms[c].copied for c in comms)
            yield from self._wait_for_sms(rank, joined, copied)
        rank.start[g] = self.network.env.now
        plans = self.timed.plans
        channels = max((plans[c].channels for c in comms), default=0)
        rank.hold(channels, joined)
        meetings = [self._arrive(rank, step, c) for c in comms]
        for meeting in meetings:
            if not meeting.over(rank).triggered:
                yield meeting.over(rank)
        rank.ready[g] = max((m.begin for m in meetings), default=rank.start[g])
        rank.hold(-channels, joined)

    def _wait_for_sms(
        self, rank: Rank, joined: frozenset[Communicator], copied: bool
    ) -> Generator[Any, Any, None]:
        """A kernel that fills the GPU leaves no SM for a communication kernel until its last wave drains.

        The next kernel of a communicator takes over the SMs of the one before. Copy engines need none.
        """
        if rank.running and not copied and not rank.holds(joined):
            yield self._next_kernel_end(rank)
        while (before := rank.moving(joined)) is not None:
            yield before.over(rank)

    def _next_kernel_end(self, rank: Rank) -> simpy.Event:
        env = self.network.env
        if rank.grains:  # one of the many kernels that a chain stands for ends
            return env.timeout(max(rank.grains.values()))
        if rank.kernel_end is None:
            rank.kernel_end = env.event()
        return rank.kernel_end

    def _arrive(self, rank: Rank, step: int, c: int) -> Meeting:
        """Counts the rank in; the meeting is ready when the last one, or a sender that need not wait, has come."""
        meeting = self._meeting(step, c)
        meeting.ranks.append(rank)
        comm, number = self.timed.graph.comms[c], rank.program.rank
        everyone = comm.sender < 0 and len(meeting.ranks) == comm.arrivals
        if comm.sender == number or everyone:
            meeting.ready.succeed()
        if self.timed.plans[c].buffered > 0 and _sends(comm, number):
            meeting.senders.append(rank)
        return meeting

    def _meeting(self, step: int, c: int) -> Meeting:
        key = (step, c)
        if key not in self.opened:
            plan = self._plan_of(step, c)
            stages = self._stages.get(id(plan)) or stages_of(plan)
            communicator = self.timed.graph.comms[c].communicator
            self.opened[key] = Meeting(self.network, plan, stages, communicator)
        return self.opened[key]

    def _plan_of(self, step: int, c: int) -> Plan:
        """A communication's plan in that step: noise stretches its latency and the time of its bytes."""
        plan, noise = self.timed.plans[c], self.timed.noise
        if noise is None:
            return plan
        latency = plan.latency * float(noise.latency[step, c])
        slower = float(noise.bytes[step, c])
        return replace(
            plan,
            latency=latency,
            usage=plan.usage * slower,
            rate_cap=plan.rate_cap / slower,
        )


def _sends(comm: Comm, rank: int) -> bool:
    """Whether the rank is the sender of any of the communication's groups."""
    return any(rank == group[0] for group in comm.groups)


def stages_of(plan: Plan) -> tuple[Plan | None, Plan | None]:
    """What moves while a transfer's sender waits, and then what its buffers hold; None: nothing."""
    if plan.buffered <= 0:
        return (plan if plan.size > 0 else None), None
    rest = plan.size - plan.buffered
    while_waiting = replace(plan, size=rest) if plan.size > plan.buffered else None
    return while_waiting, replace(plan, size=plan.buffered)
