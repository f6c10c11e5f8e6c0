"""The step with its data: what the readers of [dataload] make it wait for (`prestep.workloads.dataload`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.analysis.critical_path import IO, CriticalPath, Segment
from prestep.sim.collectives.wires import processes
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.opgraph import SYNC
from prestep.sim.graph.usage import by_link
from prestep.sim.planning.planned import Planned
from prestep.sim.storage import dataload
from prestep.sim.storage.dataload import Place, fed
from prestep.sim.storage.host import constants
from prestep.sim.storage.systems import System, load_system
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.dataload import Dataload


def mistakes_of(asked: Dataload, where: str) -> list[Mistake]:
    """What is wrong with [dataload] before anything is simulated."""
    wrong = dataload.mistakes_of(asked, where)
    try:
        load_system(asked.storage or "nvme", where, "dataload.storage")
    except InputError as error:
        wrong += error.mistakes
    return wrong


def with_data(planned: Planned, run: Run, computed: float) -> dict[str, Any] | None:
    """What reading data does to a step that computes for `computed` seconds; None without [dataload]."""
    job = planned.job
    if job.data is None:
        return None
    place = _place(planned, run, job.data)
    table = fed(job.data, job.batch, computed, planned.model, place)
    return table | {"step_time_without": computed}


def path_with(path: CriticalPath, data: Mapping[str, Any] | None) -> CriticalPath:
    """The critical path of the step with its data.

    An input-bound step waits for its readers from end to end: what the GPU does meanwhile is not on its path.
    Otherwise what is exposed of reading and copying comes after what the step computes.
    """
    if data is None or data["exposed"] <= 0 or not path.segments:
        return path
    rank = path.segments[-1].rank
    end = path.begin + data["step_time_with"]
    begun = path.begin if data["input_bound"] else path.end
    waiting = Segment(rank, IO, "data", begun, end, "data loading")
    segments = (waiting,) if data["input_bound"] else (*path.segments, waiting)
    return replace(path, segments=segments, end=end)


def _place(planned: Planned, run: Run, asked: Dataload) -> Place:
    """Where the data goes: ranks of the host, rates of its copies, and when the step is launched and done."""
    fabric, gpus = planned.fabric, planned.gpus
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    pinned = _pinned_rate(fabric, gpus)
    programs = planned.graph.programs
    done = [run.end[i][0][p.kind != SYNC] for i, p in enumerate(programs)]
    launched = [run.launch[i][0] for i in range(len(programs))]
    system, delivery = None, math.inf
    if asked.sample is not None:
        name, where = asked.storage or "nvme", planned.job.where
        system = load_system(name, where, "dataload.storage")
        delivery = delivery_of(system, where, fabric, gpus)
    return Place(
        hosts.count(hosts[0]),
        min(constants()["copy"], pinned),
        pinned,
        max(float(times.max(initial=0.0)) for times in launched),
        max(float(times.max(initial=0.0)) for times in done),
        system,
        delivery,
    )


def delivery_of(
    system: System, where: str, fabric: Fabric, gpus: Sequence[str]
) -> float:
    """Bytes/s that reach the memory of the first host while the readers of all hosts read, one rank a GPU.

    Disks, PCIe and network bound it, whatever the number of workers.

    Raises
    ------
    InputError
        If the host cannot reach the storage.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> p5 = load_cluster("aws-p5")
    >>> rate = delivery_of(load_system("nvme"), "reads", p5, p5.gpus)
    >>> f"eight disks of {rate / 8 / 1e9:.2f} GB/s"
    'eight disks of 3.57 GB/s'
    """
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    memories = [
        processes.memory_of(fabric, gpu)
        for gpu, host in zip(gpus, hosts, strict=True)
        if host == hosts[0]
    ]
    try:
        return system.at(fabric).rate(memories, "read", len(set(hosts)))
    except InputError as error:
        raise InputError(
            replace(mistake, where=where, key="dataload.storage")
            for mistake in error.mistakes
        ) from None


def _pinned_rate(fabric: Fabric, gpus: Sequence[str]) -> float:
    """Bytes/s of a copy from pinned memory to a GPU of the first host while all of its ranks copy.

    Ranks share what their copies have in common: a PCIe uplink, a link between sockets, the memory.
    """
    host = fabric.host_of(gpus[0])
    ways = [
        fabric.spread(processes.memory_of(fabric, gpu), gpu)
        for gpu in gpus
        if fabric.host_of(gpu) == host
    ]
    rows, usage = by_link(ways)
    if not len(rows):
        return constants()["copy"]
    return float(np.min(fabric.links.bandwidth[rows] / usage))
