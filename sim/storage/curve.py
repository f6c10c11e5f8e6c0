"""Curves of a storage system: throughput by size of request, from one host of a cluster, as gdsio measures them.

Transfers are those of gdsio: "cpu_only" moves bytes between storage and the host's memory, "cpu_gpu" takes them on to a
GPU, request by request, "gpu_direct" goes between storage and GPU without the memory of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.opgraph import by_link
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.storage.systems import THREADS, Op, System
from prestep.sim.units import format_bandwidth, format_bytes
from prestep.topologies.fabric import Fabric

Transfer = Literal["cpu_only", "cpu_gpu", "gpu_direct"]
TRANSFERS: tuple[Transfer, ...] = get_args(Transfer)


@dataclass(frozen=True)
class Way:
    """What a host of a cluster puts between its threads and a storage system.

    Attributes
    ----------
    read, write : float
        Bytes/s of all links on the way, in each direction.
    copy : float or None
        Bytes/s at which one thread copies a request between memory and GPU before it asks for the next; None: no copy.
    disks : tuple of float
        Bytes/s of each disk that is written; empty where the storage is not in the host.
    """

    read: float
    write: float
    copy: float | None = None
    disks: tuple[float, ...] = ()

    def limit(self, op: Op) -> float:
        """Bytes/s in one direction."""
        return self.read if op == "read" else self.write


def way_of(
    system: System, fabric: Fabric, transfer: Transfer = "cpu_only", gpus: int = 0
) -> Way:
    """The way between a system and the first host of a cluster, to as many of its GPUs (0: all).

    Raises
    ------
    InputError
        If nothing leads there, or GPUs cannot reach the system.
    """
    if transfer == "gpu_direct" and not system.gpudirect:
        expected = "cpu_only or cpu_gpu: GPUs do not reach this system"
        raise InputError.of(system.name, "--transfer", transfer, expected)
    used, stores = _of_first_host(fabric, gpus), system.at(fabric)
    memories = sorted({fabric.nearest(gpu, "memory") for gpu in used})
    ends = used if transfer == "gpu_direct" else memories
    read, write = (stores.rate(ends, op) for op in ("read", "write"))
    disks = tuple(stores.disk_rates(used[0])) if system.attach == "nvme" else ()
    way = Way(read, write, None, disks)
    return way if transfer != "cpu_gpu" else _with_copies(way, fabric, used)


def _of_first_host(fabric: Fabric, gpus: int) -> list[str]:
    """So many GPUs of the first host; 0: all."""
    host = fabric.host_of(fabric.gpus[0])
    of_host = [gpu for gpu in fabric.gpus if fabric.host_of(gpu) == host]
    return of_host[: gpus or len(of_host)]


def _with_copies(way: Way, fabric: Fabric, gpus: list[str]) -> Way:
    """A way to memory that goes on to GPUs, each thread copying what it asked for."""
    down, up = _copies(fabric, gpus, into=True), _copies(fabric, gpus, into=False)
    copy = _copies(fabric, gpus[:1], into=True)
    return replace(way, read=min(way.read, down), write=min(way.write, up), copy=copy)


def _copies(fabric: Fabric, gpus: list[str], into: bool) -> float:
    """Bytes/s between GPUs and the memories beside them, in equal parts."""
    ways = []
    for gpu in gpus:
        memory = fabric.nearest(gpu, "memory")
        ways.append(fabric.spread(*((memory, gpu) if into else (gpu, memory))))
    rows, usage = by_link([(rows, usage / len(gpus)) for rows, usage in ways])
    return float(np.min(fabric.links.bandwidth[rows] / usage, initial=np.inf))


def throughput(
    system: System,
    request: float,
    threads: int,
    op: Op,
    random: bool = False,
    way: Way | None = None,
) -> float:
    """Bytes/s of one host over a way; without one, what the system gives by itself."""
    alone = system.throughput(request, threads, op, random)
    if way is None:
        return alone
    limits = [alone, way.limit(op)]
    if way.copy is not None:
        each = system.latency + request / system.thread + request / way.copy
        limits.append(threads * request / each)
    return min(limits)


SCHEMA = schemas_beside(__file__)["schema"]


def table_of(
    system: System, threads: int = THREADS, way: Way | None = None
) -> list[dict[str, Any]]:
    """The curve: throughput (bytes/s) and requests/s by size of request, sequential and random, read and written.

    Raises
    ------
    InputError
        If the system is a cluster's own, and no way on a cluster is given.
    """
    if way is None and system.write is None and system.client is None:
        expected = "a cluster, whose links say how fast it is"
        mistake = Mistake(system.name, "--cluster", "nothing", expected)
        raise InputError(mistake)
    return [_row(system, 2.0**power, threads, way) for power in range(12, 25, 2)]


def _row(system: System, size: float, threads: int, way: Way | None) -> dict[str, Any]:
    row: dict[str, Any] = {"request": size, "threads": threads}
    ops: tuple[Op, ...] = ("read", "write")
    for op in ops:
        for how in ("sequential", "random"):
            random = how == "random"
            row[f"{op}_{how}"] = throughput(system, size, threads, op, random, way)
    return row | {"random_iops": row["read_random"] / size}


# Headings of the curve, and what stands below each.
_COLUMNS = (
    ("request", "request"),
    ("read", "read_sequential"),
    ("random", "read_random"),
    ("requests/s", "random_iops"),
    ("written", "write_sequential"),
    ("random", "write_random"),
)


def render(
    system: System,
    threads: int = THREADS,
    way: Way | None = None,
    transfer: Transfer = "cpu_only",
) -> str:
    """The curve for people."""
    lines = [f"{system.name}: {system.description}"]
    lines += [f"one host, {threads} threads", *_of_way(way, transfer), ""]
    lines.append("".join(f"{head:>14}" for head, _ in _COLUMNS))
    for row in table_of(system, threads, way):
        cells = [_cell(key, row[key]) for _, key in _COLUMNS]
        lines.append("".join(f"{cell:>14}" for cell in cells))
    lines.append("")
    lines += [
        f"{key}: {grade}, {system.source[key]}"
        for key, grade in system.evidence.items()
    ]
    return "\n".join(lines)


def _of_way(way: Way | None, transfer: str) -> Iterator[str]:
    """What the cluster adds."""
    if way is None:
        return
    read, written = format_bandwidth(way.read), format_bandwidth(way.write)
    yield f"{transfer}: the way takes {written} and gives {read}"
    if way.disks:
        each = format_bandwidth(max(way.disks))
        yield f"disks of a host: {len(way.disks)} x {each} written"


def _cell(key: str, value: float) -> str:
    if key == "request":
        return format_bytes(value)
    if key == "random_iops":
        return f"{value:,.0f}"
    return format_bandwidth(value)
