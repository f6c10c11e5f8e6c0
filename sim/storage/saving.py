"""One save of a simulated scenario, leg by leg; what it costs in all is in `prestep.sim.storage.checkpointing`.

A save is a row of legs for every writer (`prestep.sim.storage.legs`), which share the links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.analysis.effects import step_time
from prestep.sim.collectives.wires import processes
from prestep.sim.engine.engine import execute
from prestep.sim.engine.execution import Run
from prestep.sim.engine.storage import Leg, play
from prestep.sim.errors import InputError
from prestep.sim.planning.planned import Planned
from prestep.sim.storage.contents import contents, pieces
from prestep.sim.storage.evidence import rests_on
from prestep.sim.storage.legs import Writers, hosts_of
from prestep.sim.storage.sections import Checkpoint
from prestep.sim.storage.systems import REQUEST, THREADS, System, constants, load_system
from prestep.sim.storage.writing import WriterTensors, backlog, tensors_of
from prestep.sim.units import format_bytes
from prestep.workloads.optimizer import optimizer

ALL_LEGS = ("plan", "collect", "copy", "serialise", "full", "sync", "direct", "finish")
BESIDE = 512  # writers whose bytes are simulated one by one beside the steps
BACKGROUND = 1e18  # bytes of a transfer that outlasts the steps beside it


class Work(NamedTuple):
    """A leg of a writer, in s from the start of the save: `blocks` where training waits for it."""

    name: str
    start: float
    end: float
    size: float
    blocks: bool


@dataclass(frozen=True)
class Save:
    """A save alone on its links, in s from its start: when training goes on, and when the last byte is written.

    `legs` has the end of every leg of the slowest writer, `works` what each simulated writer does.
    """

    stall: float
    end: float
    durable: float
    host_held: float
    legs: dict[str, float]
    rests_on: list[dict[str, Any]]
    works: Mapping[int, tuple[Work, ...]]
    writers: tuple[int, ...]


class Checkpointing:
    """The save of a step that was planned and executed."""

    def __init__(
        self,
        planned: Planned,
        saves: Checkpoint,
        run: Run,
        step: float,
        first: bool = True,
    ) -> None:
        self.planned, self.run, self.job = planned, run, planned.job
        self.gpus, self.fabric = planned.gpus, planned.fabric
        self.world = planned.lowered.layout.world
        self.asked = replace(saves, mode=saves.mode or "rank0")
        parameters = planned.lowered.parameters
        self.holds = contents(self.job, saves, planned.model, parameters)
        name = self.asked.storage or "nvme"
        self.system: System = load_system(name, self.job.where, "checkpoint.storage")
        self.stores = self.system.at(self.fabric)
        self._check_room()
        queued = backlog(planned, run, step)
        tensors = self._tensors()
        self.writers = Writers(
            planned,
            self.asked,
            self.holds,
            self.system,
            self.stores,
            tensors,
            first,
            queued,
        )

    def _tensors(self) -> WriterTensors:
        """The tensors of one writer."""
        moments = optimizer(self.job.optimizer).moments
        copies = 1 + (moments if self.asked.content == "all" else 0)
        dealt = 1 if self.job.sharded else self.job.degrees.dp
        if self.asked.mode == "rank0" or self.asked.writers == "replica0":
            dealt = 1
        sizes, writers = self.planned.lowered.tensors, len(self.holds.writers)
        return tensors_of(sizes, self.holds.share, writers, copies, dealt)

    def _check_room(self) -> None:
        room, need = self._room, self.holds.size
        if self.system.attach in ("nvme", "block"):
            need /= len(self._hosts(self.holds.writers))
        if room is not None and need > room:
            where, key = self.job.where, "checkpoint.storage"
            found = f"{format_bytes(need)} for {self.system.name}"
            expected = f"at most {format_bytes(room)}"
            hint = 'more hosts to write, content = "model", or another storage'
            raise InputError.of(where, key, found, expected, hint)

    @property
    def _room(self) -> float | None:
        """Bytes that the storage has room for, of each host where each has its own; None: not known."""
        system, capacity = self.system, self.asked.capacity or self.system.capacity
        if capacity is not None or system.disk is None:
            return capacity
        writer = self.gpus[self.holds.writers[0]]
        return system.disk * len(self.stores.disk_rates(writer))

    def save(self) -> Save:
        """The save, alone on the links."""
        writers = self._simulated(self.holds.writers)
        flows = [self.writers.legs(rank) for rank in writers]
        bandwidth = self.stores.of_one_host(
            len(self._hosts(self.holds.writers)) / len(self._hosts(writers))
        )
        ends = play(flows, bandwidth)
        slowest = max(range(len(flows)), key=lambda at: ends[at][-1])
        names = [leg.name for leg in flows[slowest]]
        legs = dict(zip(names, ends[slowest], strict=True))
        stall = max(map(self._stall, flows, ends))
        end = max(times[-1] for times in ends)
        rows = rests_on(
            flows[slowest],
            legs,
            self.system,
            self.fabric,
            bandwidth,
            self.writers.copies_rest_on,
        )
        durable = end + self._written_back()
        works = map(self._works, flows, ends)
        return Save(
            stall=stall,
            end=end,
            durable=durable,
            host_held=self._host_held,
            legs=legs,
            rests_on=rows,
            works=dict(zip(writers, works, strict=True)),
            writers=self.holds.writers,
        )

    def _works(self, legs: list[Leg], ends: list[float]) -> tuple[Work, ...]:
        """What a writer does, one leg after the other."""
        starts = [0.0, *ends[:-1]]
        return tuple(
            Work(leg.name, start, end, leg.size, leg.name in self._blocking)
            for leg, start, end in zip(legs, starts, ends, strict=True)
        )

    def _stall(self, legs: list[Leg], ends: list[float]) -> float:
        """When the last leg that training waits for is over."""
        blocking = self._blocking
        pairs = zip(legs, ends, strict=True)
        return max([0.0, *(end for leg, end in pairs if leg.name in blocking)])

    @property
    def _host_held(self) -> float:
        """Seconds that a writer in a thread of the training process takes from the host.

        While contexts are made and Python makes the plan nothing is launched; the step has some slack for that once.
        """
        writers = self.writers
        if not writers.behind:
            return 0.0
        contexts = writers.contexts if writers.first else 0.0
        block = max(0.0, contexts + writers.tensors.plan - writers.queued.slack)
        return block + writers.tensors.items + writers.tensors.results

    def _written_back(self) -> float:
        """Seconds until pages that nobody syncs are on the disk."""
        unsynced = self.asked.mode == "rank0" and not self.asked.gpudirect
        if not unsynced or not self.system.page_cache:
            return 0.0
        rate = self._sync_rate(self.holds.writers[0])
        return constants()["expire"] + self.holds.size / rate

    def load(self) -> float:
        """Seconds until all GPUs of the run that restarts have their state: files opened, read, copied to the GPU."""
        gpus = self.asked.restore_gpus or self.world
        parts = self.job.degrees.tp * self.job.degrees.pp
        each = self.holds.size / (gpus if self.job.sharded else parts)
        files = 1
        if self.asked.mode != "rank0":
            files = pieces(len(self.holds.writers), gpus)
        readers = self._simulated(tuple(range(min(gpus, self.world))))
        flows = [self._reading(rank, each, files) for rank in readers]
        everybody = len(self._hosts(tuple(range(self.world))))
        hosts = max(1.0, gpus / self.world) * everybody / len(self._hosts(readers))
        return max(end[-1] for end in play(flows, self.stores.of_one_host(hosts)))

    def _reading(self, rank: int, size: float, files: int) -> list[Leg]:
        """What one reader does: opens so many files, reads its bytes and copies them to its GPU."""
        c, s, gpu = constants(), self.system, self.gpus[rank]
        memory = processes.memory_of(self.fabric, gpu)
        way, up = self.stores.path(memory, "read"), self.fabric.spread(memory, gpu)
        cap = min(s.throughput(REQUEST, max(1, s.threads), "read"), c["load"])
        read = Leg("read", size, cap, s.metadata * files + s.latency, *way)
        return [read, Leg("to_gpu", size, c["copy"], 0.0, *up)]

    @property
    def _blocking(self) -> tuple[str, ...]:
        """Legs that training waits for."""
        if self.asked.mode not in ("async", "peer"):
            return ALL_LEGS
        if self.asked.gpudirect:
            return ("plan",)
        return ("copy",) if self.asked.mode == "async" else ("plan", "copy")

    def _hosts(self, ranks: tuple[int, ...]) -> set[str]:
        return hosts_of(self.planned, ranks)

    def _simulated(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks to simulate: all, or of many hosts those of the first, for whom shared links are as much slower."""
        if len(self._hosts(ranks)) <= 4:
            return ranks
        hosts = [self.fabric.host_of(self.gpus[rank]) for rank in ranks]
        pairs = zip(ranks, hosts, strict=True)
        return tuple(rank for rank, host in pairs if host == hosts[0])

    def _sync_rate(self, rank: int) -> float:
        """Bytes/s at which one host's page cache is written back."""
        memory = processes.memory_of(self.fabric, self.gpus[rank])
        limit = self.stores.rate([memory], "write")
        return min(limit, self.system.throughput(REQUEST, THREADS, "write"))

    def beside(self, step: float) -> float:
        """Step time (s) while the background writer is at work: its bytes share links with those of training."""
        if self.asked.mode not in ("async", "peer"):
            return step
        # On the steps' links everybody's bytes count: those of all writers, or of very many the first host's.
        many = len(self.holds.writers) > BESIDE
        writers = self._simulated(self.holds.writers) if many else self.holds.writers
        plans = [plan.links for plan in self.planned.plans if plan.size > 0]
        used = np.unique(np.concatenate([*plans, np.empty(0, int)]))
        legs = [
            replace(leg, size=BACKGROUND)
            for rank in writers
            for leg in self.writers.legs(rank)
            if leg.name in ("sync", "send", "direct") and np.isin(leg.links, used).any()
        ]
        if not legs:
            return step
        hosts = len(self._hosts(self.holds.writers)) / len(self._hosts(writers))
        return self._rerun(legs, step, hosts)

    def _rerun(self, legs: list[Leg], step: float, hosts: float) -> float:
        background = tuple(leg.plan for leg in legs)
        rates = self.stores.in_front(hosts)
        beside = replace(self.planned, bandwidth=rates, background=background)
        return max(step, step_time(beside, execute(beside, self.run.steps)))
