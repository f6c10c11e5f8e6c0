"""Copies between a GPU and its host's memory, and what the CPU does with tensors there, as activities on links.

They share PCIe or C2C with what else crosses it, and the host's memory with the other ranks of their socket. All
constants are those of one host (an H100's, 16 cores of a Xeon in a virtual machine; lab/cases/offload): for
another host they are a guess, and so are the plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import processes
from prestep.sim.graph.opgraph import NORM_ON_HOST, TO_GPU, TO_HOST, UPDATE_ON_HOST
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric

OPS = (TO_GPU, TO_HOST, UPDATE_ON_HOST, NORM_ON_HOST)
#: Seconds that a copy from or to pinned memory takes before its first byte, beyond its links. Measured: 2.8 us in all
#: beside bytes at 54.5 GB/s (64 KiB and 1 MiB).
START = 2.0e-6
#: Bytes/s of copies of memory that is not pinned, which the CPU copies through buffers of the driver, and seconds
#: before their first byte. Measured: 7.5 and 12.8 GB/s of 1 GiB, 10 and 17 us in all of 64 KiB.
PAGEABLE = {TO_GPU: 7.5e9, TO_HOST: 12.8e9}
PAGEABLE_START = 8.0e-6
#: Bytes/s of host memory that one thread's fused Adam moves, and the most that many do together. Fitted to 1 to 16
#: threads: 28, 44, 78, 107 and 137 GB/s.
THREAD, TOGETHER = 29.0e9, 205.0e9
#: Bytes/s at which a norm is read: by one thread, however many there are. Measured: 0.8 GB in 70 ms.
NORM = 11.4e9
#: Threads of a rank that has its host alone: PyTorch takes one for each core. Measured there, a guess elsewhere.
CORES = 16


@dataclass(frozen=True)
class Settings:
    """What a plan depends on beside its operation and its GPU.

    Attributes
    ----------
    numa : str
        On which socket processes and their memory are.
    threads : int
        Threads of the CPU that update a rank's parameters.
    pinned : bool
        Whether copies are of pinned memory.
    """

    numa: str
    threads: int
    pinned: bool = True


def usual_threads(fabric: Fabric, ranks: Sequence[str]) -> int:
    """Threads of ranks with these GPUs: one each where several share the first one's host (torchrun)."""
    host = fabric.host_of(ranks[0])
    shared = any(fabric.host_of(gpu) == host for gpu in ranks[1:])
    return 1 if shared else CORES


def plan(op: str, size: float, gpu: str, settings: Settings, fabric: Fabric) -> Plan:
    """One rank's copy of `size` bytes, or its work on so many bytes of the host's memory."""
    memory = processes.memory_of(fabric, gpu)
    links = _route(op, gpu, memory, fabric)
    copies = op in (TO_GPU, TO_HOST)
    rates = {UPDATE_ON_HOST: rate_of(settings.threads), NORM_ON_HOST: NORM}
    rates |= {} if settings.pinned else PAGEABLE
    start = START if settings.pinned else PAGEABLE_START
    return Plan(
        op=op,
        size=size,
        ranks=(gpu,),
        algo="copy" if copies else "cpu",
        proto="",
        channels=0,
        latency=start + fabric.latency(links) if copies else 0.0,
        links=links,
        usage=np.ones(len(links)),
        rate_cap=rates.get(op, float("inf")),
        evidence="guess",
        on_cpu=not copies,
    )


def _route(op: str, gpu: str, memory: str, fabric: Fabric) -> Ints:
    """Links that bytes cross; memory carries reads and writes together, so the CPU's count on their way to it."""
    if op == TO_GPU:
        return fabric.route(memory, gpu)
    if op == TO_HOST:
        return fabric.route(gpu, memory)
    return fabric.route(memory, fabric.nearest(memory, "cpu"))


def rate_of(threads: int) -> float:
    """Bytes/s of host memory that some threads move together: each waits for memory that they share."""
    return 1.0 / (1.0 / (threads * THREAD) + 1.0 / TOGETHER)
