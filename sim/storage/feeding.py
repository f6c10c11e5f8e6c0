"""The step with its data: what the readers of [dataload] make it wait for (`prestep.sim.storage.dataload`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prestep.sim.analysis.constants import Constant
from prestep.sim.analysis.critical_path import IO, CriticalPath, Segment
from prestep.sim.analysis.uncertainty import GUESS, Uncertainty, interval
from prestep.sim.collectives.wires import processes
from prestep.sim.costs.spreads import quantile
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.opgraph import SYNC, by_link
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.planning.planned import Planned
from prestep.sim.storage import dataload
from prestep.sim.storage.dataload import Place
from prestep.sim.storage.sections import Dataload
from prestep.sim.storage.systems import System, constants, load_system
from prestep.sim.units import format_duration
from prestep.topologies.fabric import Fabric

TITLE = "Data loading"


def mistakes_of(asked: Dataload, where: str) -> list[Mistake]:
    """What is wrong with [dataload] before anything is simulated."""
    mistakes = [*dataload.mistakes_of(asked, where)]
    with InputError.collected(mistakes):
        load_system(asked.storage or "nvme", where, "dataload.storage")
    return mistakes


SCHEMA = schemas_beside(__file__)["schema"]


def delay(planned: Planned, run: Run, asked: Dataload, computed: float) -> Reading:
    """What reading data makes a step wait for that computes for `computed` seconds."""
    place = _place(planned, run, asked)
    table = dataload.table_of(asked, planned.job.batch, computed, planned.model, place)
    return Reading(asked, planned.job.where, table | {"step_time_without": computed})


@dataclass(frozen=True)
class Reading:
    """The readers of a step, which delay it (`prestep.sim.analysis.effects`); `table` is `dataload.table_of`'s."""

    asked: Dataload
    where: str
    table: Mapping[str, Any]

    @property
    def step_time(self) -> float:
        """Seconds of the step with its data."""
        return float(self.table["step_time_with"])

    @property
    def gpu_time(self) -> float:
        """Seconds of the GPU, with what nothing overlaps."""
        return float(self.table["gpu_time"])

    def path(self, path: CriticalPath) -> CriticalPath:
        """The critical path of the step with its data.

        An input-bound step waits for its readers from end to end: what the GPU does meanwhile is not on its path.
        Otherwise what is exposed of reading and copying comes after what the step computes.
        """
        bound = self.table["input_bound"]
        if self.table["exposed"] <= 0 or not path.segments:
            return path
        rank, end = path.segments[-1].rank, path.begin + self.step_time
        begun = path.begin if bound else path.end
        waiting = Segment(rank, IO, "data", begun, end, "data loading")
        segments = (waiting,) if bound else (*path.segments, waiting)
        return replace(path, segments=segments, end=end)

    def interval(self, gpu: Uncertainty) -> Uncertainty:
        """The interval of a step that takes as long as the slower of its GPU and its readers."""
        if not self.table["readers_time"]:
            return gpu
        readers = interval(self._rests_on(), self.table["readers_time"])
        low, high = max(gpu.low, readers.low), max(gpu.high, readers.high)
        binding = readers if self.table["input_bound"] else gpu
        spread = math.log(high / low) / (2 * quantile())
        return replace(binding, low=low, high=high, spread=spread)

    def _rests_on(self) -> dict[Constant, float]:
        """Seconds of reading by what they rest on; what [dataload] says itself is as sure as its author."""
        if self.table["bound_by"] != "storage":
            return {}
        name = self.asked.storage or "nvme"
        system = load_system(name, self.where, "dataload.storage")
        grade = "datasheet" if system.evidence.get("iops") == "datasheet" else GUESS
        reads = Constant("bandwidth", f"reads from {system.name}", grade)
        return {reads: self.table["read_time"]}


def rows(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What [dataload] makes the step wait for, as rows for people."""
    state = "no overlap" if table["exposed"] else "data waits for the GPU"
    if table["input_bound"]:
        state = "input-bound"
    step = format_duration(table["step_time_with"])
    rows = [("reading a step's data", format_duration(table["read_time"]))]
    if table["copy_time"]:
        rows.append(("copying it to the GPU", format_duration(table["copy_time"])))
    return [*rows, ("step with its data", f"{step}: {state}")]


def _place(planned: Planned, run: Run, asked: Dataload) -> Place:
    """Where the data goes: ranks of the host, rates of its copies, and when the step is launched and done."""
    fabric, gpus = planned.fabric, planned.gpus
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    pinned = _pinned_rate(fabric, gpus)
    done = [
        end[0][program.kind != SYNC]
        for end, program in zip(run.end, planned.graph.programs, strict=True)
    ]
    system, delivery = None, math.inf
    if asked.sample is not None:
        name, where = asked.storage or "nvme", planned.job.where
        system = load_system(name, where, "dataload.storage")
        delivery = delivery_of(system, where, fabric, gpus)
    return Place(
        hosts.count(hosts[0]),
        min(constants()["copy"], pinned),
        pinned,
        _last([times[0] for times in run.launch]),
        _last(done),
        system,
        delivery,
    )


def _last(times: Sequence[np.ndarray]) -> float:
    """The latest of the times of all ranks."""
    return max(float(of_rank.max(initial=0.0)) for of_rank in times)


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
