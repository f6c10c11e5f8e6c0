"""One save of a simulated scenario, leg by leg; what it costs in all is in `sim.storage.checkpointing`.

A save is a row of legs for every writer (`sim.engine.storage`), in the order in which the frameworks take them:

    rank0     copy > serialise > barrier                    pages are written back later, when the kernel comes to it
    sharded   plan > copy > serialise > sync                torch.distributed.checkpoint syncs every file
    async     plan > copy | serialise > sync                what is behind the bar runs beside training
    peer      plan > copy | send to the next host's memory

With `gpudirect` bytes go from the GPU to the storage in one leg. Constants: `sim/costs/checkpoint.toml`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.analysis.step_time import step_time
from sim.engine.engine import execute
from sim.engine.execution import Run
from sim.engine.storage import Leg, play
from sim.errors import InputError, Mistake
from sim.planning.planned import Planned
from sim.storage.evidence import rests_on
from sim.storage.systems import REQUEST, THREADS, System, constants, load_system
from sim.units import format_bytes
from topologies.fabric.stores import Stores
from workloads.checkpoint import Contents, contents, pieces

PART = 2.0**23  # bytes of one part of an upload to an object store
BESIDE = 512  # writers whose bytes are simulated one by one beside the steps
BACKGROUND = 1e18  # bytes of a transfer that outlasts the steps beside it


@dataclass(frozen=True)
class Save:
    """A save alone on its links, in s from its start: when training goes on, and when the last byte is written.

    `legs` has the end of every leg of the slowest writer.
    """

    stall: float
    end: float
    durable: float
    host_held: float
    legs: dict[str, float]
    rests_on: list[dict[str, Any]]


class Checkpointing:
    """The save of a step that was planned and executed."""

    def __init__(self, planned: Planned, run: Run) -> None:
        self.planned, self.run, self.scenario = planned, run, planned.scenario
        self.asked = replace(
            self.scenario.checkpoint, mode=self.scenario.checkpoint.mode or "rank0"
        )
        self.system: System = load_system(
            self.asked.storage or "nvme", self.scenario.where, "checkpoint.storage"
        )
        self.gpus, self.fabric, self.world = (
            planned.gpus,
            planned.fabric,
            planned.lowered.layout.world,
        )
        self.holds: Contents = contents(
            self.scenario, planned.lowered.parameters, self.world
        )
        s = self.system
        self.stores = Stores(
            self.fabric, s.name, s.attach, {"read": s.read, "write": s.write}, s.client
        )
        self._check_room()

    def _check_room(self) -> None:
        room = self.asked.capacity or self.system.capacity
        hosts = len({self.fabric.host_of(self.gpus[r]) for r in self.holds.writers})
        need = (
            self.holds.size / hosts
            if self.system.attach in ("nvme", "block")
            else self.holds.size
        )
        if room is not None and need > room:
            hint = 'more hosts to write, content = "model", or another storage'
            found = f"{format_bytes(need)} for {self.system.name}"
            raise InputError(
                Mistake(
                    self.scenario.where,
                    "checkpoint.storage",
                    found,
                    f"at most {format_bytes(room)}",
                    hint,
                )
            )

    def save(self) -> Save:
        """The save, alone on the links."""
        writers = self._simulated(self.holds.writers)
        flows = [self._legs(rank) for rank in writers]
        scale = len(self._hosts(self.holds.writers)) / len(self._hosts(writers))
        ends = play(flows, self._bandwidth(scale))
        last = max(range(len(flows)), key=lambda at: ends[at][-1])
        legs = {leg.name: end for leg, end in zip(flows[last], ends[last], strict=True)}
        stalls = [
            max(
                [0.0]
                + [
                    e
                    for leg, e in zip(f, end, strict=True)
                    if leg.name in self._blocking
                ]
            )
            for f, end in zip(flows, ends, strict=True)
        ]
        end = max(e[-1] for e in ends)
        held = 0.0
        if (
            self.asked.mode == "async"
            and self.asked.writer == "thread"
            and "serialise" in legs
        ):
            held = legs["serialise"] - max(
                v for k, v in legs.items() if v < legs["serialise"]
            )
        durable = end
        if (
            self.asked.mode == "rank0"
            and self.system.page_cache
            and not self.asked.gpudirect
        ):
            durable += constants()["expire"] + self.holds.size / self._sync_rate(
                self.holds.writers[0]
            )
        rows = rests_on(
            flows[last], legs, self.system, self.fabric, self._bandwidth(scale)
        )
        return Save(max(stalls), end, durable, held, legs, rows)

    def load(self) -> float:
        """Seconds until all GPUs of the run that restarts have their state: files opened, read, copied to the GPU."""
        c, s = constants(), self.system
        gpus = self.asked.restore_gpus or self.world
        replicated = self.scenario.parallel.data_parallel not in ("fsdp", "zero3")
        p = self.scenario.parallel
        each = self.holds.size / (p.tp * p.pp if replicated else gpus)
        readers = self._simulated(tuple(range(min(gpus, self.world))))
        opened = (
            pieces(len(self.holds.writers), gpus) if self.asked.mode != "rank0" else 1
        )
        flows = []
        for rank in readers:
            gpu = self.gpus[rank]
            memory = self.fabric.nearest(gpu, "memory")
            way, up = self.stores.path(memory, "read"), self.fabric.spread(memory, gpu)
            cap = min(s.throughput(REQUEST, max(1, s.threads), "read"), c["load"])
            read = Leg("read", each, cap, s.metadata * opened + s.latency, *way)
            flows.append([read, Leg("to_gpu", each, c["copy"], 0.0, *up)])
        hosts = (
            max(1.0, gpus / self.world)
            * len(self._hosts(tuple(range(self.world))))
            / len(self._hosts(readers))
        )
        return max(end[-1] for end in play(flows, self._bandwidth(hosts)))

    @property
    def _blocking(self) -> tuple[str, ...]:
        """Legs that training waits for."""
        behind = self.asked.mode in ("async", "peer")
        if behind and self.asked.gpudirect:
            return ("plan",)
        return (
            ("plan", "collect", "copy")
            if behind
            else ("plan", "collect", "copy", "serialise", "full", "sync", "direct")
        )

    def _hosts(self, ranks: tuple[int, ...]) -> set[str]:
        return {self.fabric.host_of(self.gpus[rank]) for rank in ranks}

    def _simulated(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks to simulate: all, or of many hosts those of the first, for whom shared links are as much slower."""
        if len(self._hosts(ranks)) <= 4:
            return ranks
        first = self.fabric.host_of(self.gpus[ranks[0]])
        return tuple(
            rank for rank in ranks if self.fabric.host_of(self.gpus[rank]) == first
        )

    def _in_front(self, hosts: float) -> np.ndarray:
        """Bytes/s of links; those in front of the storage, which are the save's alone, have one part in `hosts`."""
        rates = self.stores.bandwidth.copy()
        shared = [name.startswith(f"{self.system.name}-") for name in self.stores.names]
        rates[len(self.fabric.links) :][np.array(shared, dtype=bool)] /= max(1.0, hosts)
        return rates

    def _bandwidth(self, hosts: float) -> np.ndarray:
        """Bytes/s of links; those that hosts share have one part in `hosts` of theirs, as all of them write at once."""
        rates, own = self._in_front(hosts), len(self.fabric.links)
        if hosts <= 1:
            return rates
        if self.system.attach == "storage":
            inside = [self.fabric.nodes.hosts[at] for at in self.fabric.ends[0]]
            outside = np.array(
                [
                    not (a and self.fabric.nodes.hosts[b])
                    for a, b in zip(inside, self.fabric.ends[1], strict=True)
                ]
            )
            one_end = np.array(
                [
                    bool(a) != bool(self.fabric.nodes.hosts[b])
                    for a, b in zip(inside, self.fabric.ends[1], strict=True)
                ]
            )
            rates[:own][outside & ~one_end] /= hosts
        return rates

    def _sync_rate(self, rank: int) -> float:
        """Bytes/s at which one host's page cache is written back."""
        rows, usage = self.stores.path(
            self.fabric.nearest(self.gpus[rank], "memory"), "write"
        )
        limit = (
            float(np.min(self.stores.bandwidth[rows] / usage))
            if len(rows)
            else math.inf
        )
        return min(limit, self.system.throughput(REQUEST, THREADS, "write"))

    def _legs(self, rank: int) -> list[Leg]:
        """What one writer does, in order."""
        c, s, asked = constants(), self.system, self.asked
        gpu, size = self.gpus[rank], self.holds.share
        memory = self.fabric.nearest(gpu, "memory")
        legs = [] if asked.mode == "rank0" else [Leg("plan", latency=c["plan"])]
        if asked.mode == "rank0" and (collected := self._collect(gpu)) is not None:
            legs.append(collected)
        if asked.gpudirect:
            way, cap = (
                self.stores.path(gpu, "write"),
                s.throughput(REQUEST, s.threads, "write"),
            )
            return [*legs, Leg("direct", size, cap, s.metadata + s.latency, *way)]
        cap = math.inf if asked.pinned else 1 / (1 / c["copy"] + 1 / c["fresh"])
        legs.append(Leg("copy", size, cap, 0.0, *self.fabric.spread(gpu, memory)))
        if asked.mode == "peer":
            return [*legs, Leg("send", size, math.inf, 0.0, *self._to_peer(memory))]
        if not s.page_cache:
            way, cap = (
                self.stores.path(memory, "write"),
                s.throughput(PART, s.threads, "write"),
            )
            return [*legs, Leg("sync", size, cap, s.metadata + s.latency, *way)]
        return legs + self._through_page_cache(rank, memory, size)

    def _through_page_cache(self, rank: int, memory: str, size: float) -> list[Leg]:
        c, s = constants(), self.system
        beside = sum(
            self.fabric.host_of(self.gpus[r]) == self.fabric.host_of(memory)
            for r in self.holds.writers
        )
        room = c["dirty_share"] * c["memory"] / beside
        way, cap = (
            self.stores.path(memory, "write"),
            s.throughput(REQUEST, THREADS, "write"),
        )
        legs = [Leg("serialise", min(size, room), c["serialise"], s.metadata)]
        if size > room:  # what the page cache cannot hold waits for the disk
            legs.append(Leg("full", size - room, min(cap, c["serialise"]), 0.0, *way))
        if self.asked.mode != "rank0":
            legs.append(Leg("sync", min(size, room), cap, s.latency, *way))
        return legs

    def _collect(self, gpu: str) -> Leg | None:
        """Parts of other ranks on their way to rank 0, where it has not all of them."""
        p = self.scenario.parallel
        parts = self.world if p.data_parallel in ("fsdp", "zero3") else p.tp * p.pp
        if parts <= 1:
            return None
        others = [g for g in self.gpus[: self.world] if g != gpu][: parts - 1]
        each = self.holds.size / parts
        index = self.fabric.positions(others)
        load = self.fabric.loads(
            index,
            np.full(len(others), self.fabric.node_index(gpu)),
            np.full(len(others), each),
        )
        rows = np.flatnonzero(load > 0)
        size = each * len(others)
        return Leg("collect", size, math.inf, 0.0, rows, load[rows] / size)

    def _to_peer(self, memory: str) -> tuple[np.ndarray, np.ndarray]:
        hosts = sorted(
            self._hosts(tuple(range(self.world))), key=self.fabric.hosts.index
        )
        if len(hosts) < 2:
            found, hint = "one host", "a copy on the host that fails is lost with it"
            raise InputError(
                Mistake(
                    self.scenario.where,
                    "checkpoint.mode",
                    f"peer on {found}",
                    "two hosts or more",
                    hint,
                )
            )
        here = hosts.index(self.fabric.host_of(memory))
        other = next(
            g
            for g in self.gpus
            if self.fabric.host_of(g) == hosts[(here + 1) % len(hosts)]
        )
        return self.fabric.spread(memory, self.fabric.nearest(other, "memory"))

    def beside(self, step: float) -> float:
        """Step time (s) while the background writer is at work: its bytes share links with those of training."""
        if self.asked.mode not in ("async", "peer"):
            return step
        # On the steps' links everybody's bytes count: those of all writers, or of very many the first host's.
        many = len(self.holds.writers) > BESIDE
        writers = self._simulated(self.holds.writers) if many else self.holds.writers
        legs = [leg for rank in writers for leg in self._legs(rank)]
        legs = [
            leg
            for leg in legs
            if leg.name in ("sync", "send", "direct") and len(leg.links)
        ]
        used = np.unique(
            np.concatenate(
                [p.links for p in self.planned.plans if p.size > 0]
                or [np.empty(0, int)]
            )
        )
        legs = [leg for leg in legs if np.isin(leg.links, used).any()]
        if not legs:
            return step
        hosts = len(self._hosts(self.holds.writers)) / len(self._hosts(writers))
        return self._rerun([replace(leg, size=BACKGROUND) for leg in legs], step, hosts)

    def _rerun(self, legs: list[Leg], step: float, hosts: float) -> float:
        background = tuple(leg.plan for leg in legs)
        beside = replace(
            self.planned, bandwidth=self._in_front(hosts), background=background
        )
        return max(step, step_time(beside, execute(beside, self.run.steps)))
