"""Copies between a GPU and its host's memory, and what the CPU does with tensors there, as activities on links.

They share PCIe or C2C with what else crosses it, and the host's memory with the other ranks of their socket.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.collectives.plan import Plan
from sim.planning import numa
from sim.spec.sections import Scenario
from topologies.fabric import Fabric

COPIES = ("to_gpu", "to_host")
WORK = ("update_on_host", "norm_on_host")
#: Seconds that a copy from or to pinned memory takes before its first byte, beyond its links. Measured on an H100: 2.8
#: us beside bytes at 54.5 GB/s (validation/cases/offload, 64 KiB and 1 MiB).
START = 2.0e-6
#: Bytes/s of host memory that one thread's fused Adam moves, and the most that many do together. Fitted on 1 to 16
#: threads of an H100's host (validation/cases/offload: 28, 44, 78, 107 and 137 GB/s).
THREAD, TOGETHER = 29.0e9, 205.0e9
#: Threads of a rank that has its host alone: PyTorch takes one for each core.
ALONE = 16
#: Bytes/s at which a norm is read: by one thread, however many there are (same rows: 0.8 GB in 70 ms).
NORM = 11.4e9


def plan(
    op: str,
    size: float,
    gpus: Sequence[str],
    scenario: Scenario,
    fabric: Fabric,
    threads: int,
) -> Plan:
    """One rank's copy of `size` bytes, or its work on so many bytes of the host's memory by some threads.

    Memory carries reads and writes together, so all bytes of the CPU's work count on its way to the CPU.
    """
    (gpu,) = gpus
    memory = numa.memory_of(scenario, fabric, gpu)
    if op in COPIES:
        ends = (memory, gpu) if op == "to_gpu" else (gpu, memory)
        links = fabric.route(*ends)
        latency, rate = START + fabric.latency(links), np.inf
    else:
        links = fabric.route(memory, fabric.nearest(memory, "cpu"))
        latency, rate = 0.0, NORM if op == "norm_on_host" else rate_of(threads)
    return Plan(
        op=op,
        size=size,
        ranks=(gpu,),
        algo="copy" if op in COPIES else "cpu",
        proto="",
        channels=0,
        latency=latency,
        links=links,
        usage=np.ones(len(links)),
        rate_cap=rate,
        evidence="guess",
        on_cpu=op in WORK,
    )


def threads_of(scenario: Scenario) -> int:
    """Threads that update a rank's parameters: one where several ranks share a host, as torchrun has it."""
    stated = scenario.parallel.offload_threads
    if stated is not None:
        return stated
    parallel = scenario.parallel
    ranks = parallel.dp * parallel.tp * parallel.pp * parallel.cp
    return 1 if ranks > 1 else ALONE


def rate_of(threads: int) -> float:
    """Bytes/s of host memory that some threads move together: each waits for memory that they share."""
    return 1.0 / (1.0 / (threads * THREAD) + 1.0 / TOGETHER)
