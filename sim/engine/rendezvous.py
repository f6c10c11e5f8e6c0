"""The communications of a run: a rank waits for free SMs, then for its peers, then for the bytes.

Kernels of one communicator run one after the other, as NCCL orders them; those of different ones side by side, each
with SMs of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import simpy

from prestep.sim.engine.execution import Timed
from prestep.sim.engine.fluid import Network, Transfer
from prestep.sim.engine.rank import Rank
from prestep.sim.graph.opgraph import Comm, Communicator

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan


class Meeting:
    """One communication of one step: counts arrivals, moves the bytes and tells everyone when it has ended.

    Once all are there it takes the plan's latency, and then moves its parts through the network, one after the other.
    """

    __slots__ = (
        "begin",
        "communicator",
        "crowded",
        "done",
        "here",
        "hops",
        "network",
        "parts",
        "plan",
        "ranks",
        "ready",
        "senders",
        "sent",
        "transfer",
    )

    def __init__(
        self,
        network: Network,
        plan: Plan,
        parts: tuple[Plan | None, ...],
        communicator: int,
        timed: Timed,
    ) -> None:
        env = network.env
        self.communicator = communicator
        self.network, self.plan, self.parts = network, plan, list(parts)
        self.crowded, self.hops = timed.scarcity(plan.channels), timed.hops - 1.0
        self.transfer: Transfer | None = None
        self.ranks: list[Rank] = []
        self.here: tuple[Rank, ...] = ()  # those that had come when it began
        self.begin = 0.0
        self.ready = simpy.Event(env)
        self.ready.callbacks.append(self._start)
        self.done = simpy.Event(env)
        # Kernels of these ranks may end when it is sent: the rest is in their buffers.
        self.senders: list[Rank] = []
        self.sent = simpy.Event(env)

    def _start(self, _: simpy.Event) -> None:
        env = self.network.env
        self.begin, self.here = env.now, tuple(self.ranks)
        for rank in self.here:
            rank.transferring.append(self)
        latency = self.plan.latency
        if any(rank.working for rank in self.ranks):
            latency += self.hops * min(self.plan.hops, latency)
        env.timeout(latency).callbacks.append(self._send)

    def _send(self, _: simpy.Event) -> None:
        """The next part's bytes, if there are any."""
        part = self.parts.pop(0)
        if part is None:
            self._sent(_)
        else:
            self.transfer = self.network.begin(part, self.speed)
            self.transfer.done.callbacks.append(self._sent)

    def _sent(self, _: simpy.Event) -> None:
        self.transfer = None
        if not self.sent.triggered:
            self.sent.succeed()
            for rank in self.senders:
                rank.transferring.remove(self)
        if self.parts:
            self._send(_)
            return
        for rank in self.here:
            if rank not in self.senders:
                rank.transferring.remove(self)
        self.done.succeed()

    def over(self, rank: Rank) -> simpy.Event:
        """When it has ended for a rank."""
        return self.sent if rank in self.senders else self.done

    @property
    def speed(self) -> float:
        """Less than 1 while kernels run beside it on any of its GPUs."""
        besides = [one for rank in self.ranks for one in rank.working.values()]
        return 1.0 / (1.0 + self.crowded * (max(besides, default=1.0) - 1.0))

    def adapt(self) -> None:
        """Kernels beside it came or went."""
        if self.transfer is not None:
            self.transfer.limit(self.speed)


class _Batch(NamedTuple):
    """Communications that a rank takes part in at once.

    Attributes
    ----------
    joined : frozenset of int
        Their communicators.
    channels : int
        The most that any of them takes.
    copied : bool
        None of them takes SMs.
    """

    joined: frozenset[int]
    channels: int
    copied: bool


class Meetings:
    """Every communication of every step; the first rank that comes to one opens it."""

    def __init__(self, timed: Timed, network: Network) -> None:
        self.timed, self.network = timed, network
        self.opened: dict[tuple[int, int], Meeting] = {}
        distinct = {id(plan): plan for plan in timed.plans}
        self._stages = {key: stages_of(plan) for key, plan in distinct.items()}
        self._communicators = numbered(timed.graph.comms)
        self._batches: dict[tuple[int, ...], _Batch] = {}

    def communicate(
        self, rank: Rank, g: int, step: int, comms: tuple[int, ...]
    ) -> Generator[Any, Any, None]:
        """Runs operation `g` of a rank, which takes part in `comms` at once."""
        batch = self._batch(comms)
        if self.timed.exclusive:
            # A kernel that fills the GPU leaves no SM for a communication kernel until its last wave drains. The next
            # kernel of a communicator takes over the SMs of the one before. Copy engines need none.
            if rank.running and not batch.copied and not rank.holds(batch.joined):
                yield self._next_kernel_end(rank)
            while (before := rank.moving(batch.joined)) is not None:
                yield before.over(rank)
        rank.start[g] = self.network.env.now
        rank.hold(batch.channels, batch.joined)
        meetings = [self._arrive(rank, step, c) for c in comms]
        for meeting in meetings:
            over = meeting.over(rank)
            if not over.triggered:
                yield over
        begins = [meeting.begin for meeting in meetings]
        rank.ready[g] = max(begins, default=rank.start[g])
        rank.hold(-batch.channels, batch.joined)

    def _batch(self, comms: tuple[int, ...]) -> _Batch:
        """What communications at once have together: the same in every step."""
        batch = self._batches.get(comms)
        if batch is None:
            plans, listed = self.timed.plans, self.timed.graph.comms
            batch = self._batches[comms] = _Batch(
                frozenset([self._communicators[c] for c in comms]),
                max([plans[c].channels for c in comms], default=0),
                all(listed[c].copied for c in comms),
            )
        return batch

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
        meeting = self.opened.get(key)
        if meeting is None:
            plan = self._plan_of(step, c)
            stages = self._stages.get(id(plan)) or stages_of(plan)
            of = plan, stages, self._communicators[c], self.timed
            meeting = self.opened[key] = Meeting(self.network, *of)
        return meeting

    def _plan_of(self, step: int, c: int) -> Plan:
        """A communication's plan in that step: noise stretches its latency and the time of its bytes."""
        plan, noise = self.timed.plans[c], self.timed.noise
        if noise is None:
            return plan
        longer, slower = float(noise.latency[step, c]), float(noise.bytes[step, c])
        return replace(
            plan,
            latency=plan.latency * longer,
            hops=plan.hops * longer,
            usage=plan.usage * slower,
            rate_cap=plan.rate_cap / slower,
        )


def numbered(comms: Sequence[Comm]) -> list[int]:
    """The communicator of every communication, as a number: their ranks take long to compare."""
    numbers: dict[Communicator, int] = {}
    return [numbers.setdefault(comm.communicator, len(numbers)) for comm in comms]


def _sends(comm: Comm, rank: int) -> bool:
    """Whether the rank is the sender of any of the communication's groups."""
    return rank in [group[0] for group in comm.groups]


def stages_of(plan: Plan) -> tuple[Plan | None, Plan | None]:
    """What moves while a transfer's sender waits, and then what its buffers hold; None: nothing."""
    if plan.buffered <= 0:
        return (plan if plan.size > 0 else None), None
    rest = plan.size - plan.buffered
    while_waiting = replace(plan, size=rest) if plan.size > plan.buffered else None
    return while_waiting, replace(plan, size=plan.buffered)
