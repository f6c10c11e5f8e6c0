"""The legs of one writer's save, in the order in which the frameworks take them:

    rank0     copy > serialise > barrier                    pages are written back later, when the kernel comes to it
    sharded   plan > copy > serialise > sync > finish       torch.distributed.checkpoint syncs every file
    async     copy | plan > context > serialise > sync > finish    what is behind the bar runs beside training
    peer      plan > copy | send to the next host's memory

With `gpudirect` bytes go from the GPU to the storage in one leg. Constants: `sim/costs/checkpoint.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prestep.sim.collectives.wires import processes
from prestep.sim.engine.storage import Leg
from prestep.sim.errors import InputError
from prestep.sim.planning.planned import Planned
from prestep.sim.storage.contents import Contents
from prestep.sim.storage.sections import Checkpoint
from prestep.sim.storage.systems import PART, REQUEST, THREADS, System, constants
from prestep.sim.storage.writing import Backlog, WriterTensors, waits
from prestep.topologies.fabric.stores import Stores


def hosts_of(planned: Planned, ranks: Sequence[int]) -> set[str]:
    """The hosts of these ranks."""
    return {planned.fabric.host_of(planned.gpus[rank]) for rank in ranks}


@dataclass(frozen=True, eq=False)
class Writers:
    """The writers of a save: what each of them does, in order.

    Attributes
    ----------
    first : bool
        The job's first save, which allocates pinned memory and makes contexts; later ones find them.
    queued : Backlog
        What the steps beside have queued on the GPU.
    """

    planned: Planned
    asked: Checkpoint
    holds: Contents
    system: System
    stores: Stores
    tensors: WriterTensors
    first: bool
    queued: Backlog

    @property
    def copies_rest_on(self) -> tuple[str, ...]:
        """The constants behind copies to the host's memory."""
        return ("pin",) if self.asked.mode == "sharded" else ("copy", "fresh")

    @property
    def behind(self) -> bool:
        """Whether a thread of the training process writes, beside the steps."""
        return self.asked.mode == "async" and self.asked.writer == "thread"

    def legs(self, rank: int) -> list[Leg]:
        """What one writer does, in order."""
        asked, size, gpu = self.asked, self.holds.share, self.planned.gpus[rank]
        planned = self.planned
        memory = processes.memory_of(planned.fabric, gpu)
        legs = self._before(gpu)
        if asked.gpudirect:
            return [*legs, self._written("direct", gpu, REQUEST)]
        # async_save stages what it saves at once; the thread that it starts makes the plan
        copy = self._copy(gpu, memory)
        legs = [copy, *legs] if asked.mode == "async" else [*legs, copy]
        if asked.mode == "peer":
            return [*legs, Leg("send", size, math.inf, 0.0, *self._to_peer(memory))]
        if self.behind and self.first and rank not in self._leaders:
            legs.append(Leg("context", latency=self.contexts))
        legs += self._serialised(rank, memory, size)
        if asked.mode != "rank0":
            legs.append(Leg("finish", latency=self.tensors.results))
        return legs

    def _serialised(self, rank: int, memory: str, size: float) -> list[Leg]:
        """Written as files: uploaded, or into the page cache and on to the disk."""
        busy = self._busy(rank)
        if self.system.page_cache:
            return self._through_page_cache(memory, size, busy)
        made = Leg("serialise", size, constants()["serialise"], busy)
        return [made, self._written("sync", memory, PART)]

    def _busy(self, rank: int) -> float:
        """Seconds that a writer spends on tensors beside their bytes, and waiting for the GPU."""
        if self.asked.mode == "rank0":
            return 0.0
        busy = self.tensors.items
        if self.behind and rank in self._leaders:
            busy += waits(self.tensors.sizes, constants()["serialise"], self.queued)
        return busy

    @cached_property
    def _leaders(self) -> frozenset[int]:
        """The first rank of each host: its GPU is device 0, which a new thread waits for."""
        seen: dict[str, int] = {}
        for rank, gpu in enumerate(self.planned.gpus):
            seen.setdefault(self.planned.fabric.host_of(gpu), rank)
        return frozenset(seen.values())

    @cached_property
    def contexts(self) -> float:
        """Seconds until all other writers of a host have a context on its first GPU."""
        hosts = [
            self.planned.fabric.host_of(self.planned.gpus[rank])
            for rank in self.holds.writers
            if rank not in self._leaders
        ]
        most = max(map(hosts.count, set(hosts)), default=0)
        return most * constants()["context"]

    def _written(self, name: str, node: str, request: float) -> Leg:
        """From a node to the storage at once, in requests of so many bytes."""
        s = self.system
        cap = s.throughput(request, s.threads, "write")
        way = self.stores.path(node, "write")
        return Leg(name, self.holds.share, cap, s.metadata + s.latency, *way)

    def _before(self, gpu: str) -> list[Leg]:
        """What comes before a writer's first byte: a plan, or parts of other ranks."""
        if self.asked.mode != "rank0":
            return [Leg("plan", latency=self.tensors.plan)]
        collected = self._collect(gpu)
        return [] if collected is None else [collected]

    def _copy(self, gpu: str, memory: str) -> Leg:
        """From the GPU to the host's memory: pages that are not pinned are fresh, and cost their first touch.

        A plain save copies through pinned memory: the first one allocates it.
        """
        c = constants()
        fresh = 1 / (1 / c["copy"] + 1 / c["fresh"])
        if self.asked.mode == "sharded":
            fresh = c["pin"] if self.first else math.inf
        cap = math.inf if self.asked.pinned else fresh
        way = self.planned.fabric.spread(gpu, memory)
        return Leg("copy", self.holds.share, cap, 0.0, *way)

    def _through_page_cache(self, memory: str, size: float, busy: float) -> list[Leg]:
        """Into the page cache of the writer's host, and on to the storage."""
        c, s = constants(), self.system
        host = self.planned.fabric.host_of(memory)
        hosts = [
            self.planned.fabric.host_of(self.planned.gpus[rank])
            for rank in self.holds.writers
        ]
        room = c["dirty_share"] * c["memory"] / hosts.count(host)
        way = self.stores.path(memory, "write")
        cap = s.throughput(REQUEST, THREADS, "write")
        legs = [Leg("serialise", min(size, room), c["serialise"], s.metadata + busy)]
        if size > room:  # what the page cache cannot hold waits for the disk
            legs.append(Leg("full", size - room, min(cap, c["serialise"]), 0.0, *way))
        if self.asked.mode != "rank0":
            legs.append(Leg("sync", min(size, room), cap, s.latency, *way))
        return legs

    def _collect(self, gpu: str) -> Leg | None:
        """Parts of other ranks on their way to rank 0, where it has not all of them."""
        job = self.planned.job
        whole = job.degrees.tp * job.degrees.pp
        parts = self.planned.lowered.layout.world if job.sharded else whole
        if parts <= 1:
            return None
        others = [
            g
            for g in self.planned.gpus[: self.planned.lowered.layout.world]
            if g != gpu
        ][: parts - 1]
        each = self.holds.size / parts
        src = self.planned.fabric.positions(others)
        dst = np.full(len(others), self.planned.fabric.node_index(gpu))
        load = self.planned.fabric.loads(src, dst, np.full(len(others), each))
        rows = np.flatnonzero(load > 0)
        size = each * len(others)
        return Leg("collect", size, math.inf, 0.0, rows, load[rows] / size)

    def _to_peer(self, memory: str) -> tuple[np.ndarray, np.ndarray]:
        """The way to the memory of the next host, around the job's hosts."""
        ranks = tuple(range(self.planned.lowered.layout.world))
        hosts = sorted(
            hosts_of(self.planned, ranks), key=self.planned.fabric.hosts.index
        )
        if len(hosts) < 2:
            where, found = self.planned.job.where, "peer on one host"
            expected = "two hosts or more"
            hint = "a copy on the host that fails is lost with it"
            raise InputError.of(where, "checkpoint.mode", found, expected, hint)
        here = hosts.index(self.planned.fabric.host_of(memory))
        following = hosts[(here + 1) % len(hosts)]
        other = next(
            gpu
            for gpu in self.planned.gpus
            if self.planned.fabric.host_of(gpu) == following
        )
        return self.planned.fabric.spread(
            memory, self.planned.fabric.nearest(other, "memory")
        )
