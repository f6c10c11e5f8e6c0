"""The machine that a replay runs on: recorded kernels, and communication as recorded or planned on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from sim.collectives import machine as constants
from sim.collectives.plan import Plan, nccl_of
from sim.collectives.planner import plan_collective
from sim.costs import Gpu, load_gpu
from sim.costs.interference import BUNDLED, Beside, laid_over
from sim.costs.measured import gpu_of
from sim.engine.engine import Timed
from sim.errors import InputError, Mistake, unknown
from sim.graph.kernel import Kernel
from sim.graph.opgraph import Chain, Comm
from sim.planning.planned import slowest_of
from sim.spec.sections import Nccl
from topologies import load_cluster
from topologies.fabric import Fabric
from workloads.traces.draft import Draft, Node
from workloads.traces.kernels import SPIN, kernel_of
from workloads.traces.meeting import Meeting
from workloads.traces.replay import Job, Replay

# Clusters that stand for a recorded GPU where none is named: (word in its name, bundled cluster), best first.
CLUSTERS = (
    ("H200", "h200-host-4"),
    ("H200", "dgx-h200"),
    ("H100", "dgx-h100"),
    ("H800", "hgx-h800"),
    ("A100", "dgx-a100"),
    ("B200", "dgx-b200"),
)
# Collectives of this size are bound by bandwidth, bytes.
LARGE = 1 << 20
# A transfer longer than this factor of what it should take has waited for a rank that was not recorded; kernels beside
# it slow a transfer by up to about a fifth.
LATE = 1.25
# Channels of a ring on NVLink, and SMs of a GPU of unknown make (A100's and H100's are 108 and 132).
CHANNELS, UNKNOWN_SMS = 24, 108
# (m, n, k) of a matrix product that fills a GPU, where a trace does not show shapes.
FILLS = (4096, 4096, 4096)
# Families whose kernels are bound by arithmetic; all others by memory.
ARITHMETIC = ("gemm", "attention", "convolution")


def fabric_of(job: Job, world: int, cluster: str, links: dict[str, str]) -> Fabric:
    """The cluster to play on: the one named, or the bundled one of the recorded GPU.

    Raises
    ------
    InputError
        If there is none, or it has too few GPUs.
    """
    if not cluster:
        fitting = [name for word, name in CLUSTERS if word in job.device.upper()]
        cluster = next(
            (name for name in fitting if len(load_cluster(name).gpus) >= world), ""
        )
    if not cluster:
        found = f"{world} ranks on {job.device or 'a GPU that the traces do not name'}"
        raise InputError(
            Mistake(
                "--cluster", "", found, "a cluster", "name one: `prestep list clusters`"
            )
        )
    fabric = load_cluster(cluster, overrides=links, where="--set")
    if len(fabric.gpus) < world:
        raise InputError(
            Mistake(
                cluster,
                "",
                f"{len(fabric.gpus)} GPUs",
                f"at least {world}, one for each rank",
            )
        )
    return fabric


def recorded_gpu(job: Job) -> Gpu | None:
    """The cost tables of the recorded GPU, if prestep knows it."""
    for word, name in CLUSTERS:
        if word in job.device.upper():
            return load_gpu(load_cluster(name).gpu_model)
    return None


def nccl_settings(job: Job, changed: dict[str, str]) -> Nccl:
    """NCCL's settings: the recorded version, and what `--set nccl.KEY=VALUE` says.

    Raises
    ------
    InputError
        For settings that do not exist.
    """
    kinds = {entry.name: str(entry.type) for entry in fields(Nccl)}
    values: dict[str, object] = {"version": job.nccl} if job.nccl else {}
    for key, text in changed.items():
        if key not in kinds:
            raise InputError(unknown("--set", f"nccl.{key}", key, kinds))
        try:
            values[key] = (
                text.lower() in ("true", "1", "yes")
                if "bool" in kinds[key]
                else int(text)
                if "int" in kinds[key]
                else float(text)
                if "float" in kinds[key]
                else text
            )
        except ValueError:
            raise InputError(
                Mistake("--set", f"nccl.{key}", f'"{text}"', "a number")
            ) from None
    return nccl_of(values, "--set nccl")


def timed(
    replay: Replay, fabric: Fabric | None, before: Fabric | None, nccl: Nccl
) -> tuple[Timed, int]:
    """Recorded kernels, and communication as recorded, or on a fabric (`before`: the same without changes).

    Also counts the communications of unknown size, which are played as recorded.
    """
    draft = replay.draft
    # What the cluster's file of constants says; recorded communication is as it was recorded.
    told = (
        laid_over(constants.of(fabric).tables.get("overlap", {}))
        if fabric is not None
        else BUNDLED
    )
    gpu = gpu_of(fabric) if fabric is not None else recorded_gpu(replay.job)
    kernels = replay.graph.kernels
    plans, unknown_sizes = _plans(replay, fabric, before, nccl)
    return Timed(
        graph=replay.graph,
        durations=replay.duration,
        plans=plans,
        bandwidth=fabric.links.bandwidth if fabric is not None else np.zeros(0),
        slowdown=Slowdown(
            kernels, told, gpu.sms if gpu is not None and _interferes(draft) else 0
        ),
        contention=told.communication if fabric is not None else 1.0,
        idle=frozenset(i for i, kernel in enumerate(kernels) if kernel.kind == SPIN),
        exclusive=draft.interferes,
    ), unknown_sizes


def _interferes(draft: Draft) -> bool:
    """Whether communication slows kernels: those that were recorded have that of recorded communication in them."""
    return draft.interferes or draft.relieved


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Factor on a recorded kernel, by index, beside new communication; without `sms` there is none."""

    kernels: Sequence[Kernel | Chain]
    told: Beside
    sms: int

    def __call__(self, kernel: int, channels: int) -> float:
        found = self.kernels[kernel]
        if not self.sms or isinstance(found, Chain):
            return 1.0
        return self.told.slowdown(shaped(found), channels, self.sms)


def _plans(
    replay: Replay, fabric: Fabric | None, before: Fabric | None, nccl: Nccl
) -> tuple[tuple[Plan, ...], int]:
    """A plan for every communication, and how many were played as recorded because their size is not known."""
    plans, unknown_sizes = [], 0
    held = CHANNELS if _interferes(replay.draft) and fabric is None else 0
    shortest = _Shortest.of(replay.meetings)
    for comm, meeting in zip(replay.graph.comms, replay.meetings, strict=True):
        if fabric is None or before is None or len(comm.groups[0]) < 2:
            plans.append(as_recorded(comm, meeting.duration, held))
        elif comm.size <= 0:
            plans.append(as_recorded(comm, meeting.duration))
            unknown_sizes += 1
        else:
            extra = _late(
                comm, meeting, fabric, before, replay.draft.world, nccl, shortest
            )
            planned = _on(fabric, comm, replay.draft.world, nccl)
            plans.append(
                replace(planned, latency=planned.latency + extra)
                if extra is not None
                else planned
            )
    return tuple(plans), unknown_sizes


def _on(fabric: Fabric, comm: Comm, world: int, nccl: Nccl) -> Plan:
    # NCCL chooses the channels of a transfer by the size of its communicator: the peers are named after the pair.
    extra = (
        [r for r in range(world) if r not in comm.groups[0]]
        if comm.op == "send"
        else []
    )
    members = [fabric.gpus[r] for r in (*comm.groups[0], *extra)]
    return plan_collective(comm.op, comm.size, members, fabric, nccl, comm.in_place)


def _late(
    comm: Comm,
    meeting: Meeting,
    fabric: Fabric,
    before: Fabric,
    world: int,
    nccl: Nccl,
    shortest: _Shortest,
) -> float | None:
    """Seconds that ranks which were not recorded come later than the recorded ones, as they would again; None: not."""
    if not meeting.members or not meeting.missing:
        return None
    expected = max(
        shortest.duration(meeting),
        _on(before, comm, world, nccl).duration(before.links.bandwidth),
    )
    if meeting.duration <= LATE * expected:
        return None
    # Who is late by its kernels or host catches up while transfers take longer than they did.
    longer = max(
        0.0, _on(fabric, comm, world, nccl).duration(fabric.links.bandwidth) - expected
    )
    return max(0.0, meeting.duration - expected - longer)


def as_recorded(comm: Comm, duration: float, channels: int = 0) -> Plan:
    """A communication of fixed length that uses no link, and the SMs of so many channels."""
    none = np.zeros(0)
    ranks = tuple(map(str, comm.groups[0]))
    return Plan(
        comm.op,
        0.0,
        ranks,
        "recorded",
        "",
        channels,
        duration,
        none.astype(int),
        none,
        1.0,
        "measured",
    )


@dataclass(frozen=True)
class _Shortest:
    """Shortest times that a job's collectives of a kind took, by size: there nobody was waited for."""

    alike: Mapping[tuple[object, ...], float]
    rate: Mapping[tuple[object, ...], float]

    @classmethod
    def of(cls, meetings: Sequence[Meeting]) -> _Shortest:
        alike: dict[tuple[object, ...], float] = {}
        rate: dict[tuple[object, ...], float] = {}
        for m in meetings:
            alike[m.op, m.ranks, m.size] = min(
                alike.get((m.op, m.ranks, m.size), m.duration), m.duration
            )
            if m.size >= LARGE and m.duration > 0:
                rate[m.op, m.ranks] = max(
                    rate.get((m.op, m.ranks), 0.0), m.size / m.duration
                )
        return cls(alike, rate)

    def duration(self, m: Meeting) -> float:
        """Seconds of a collective for which nobody is waited."""
        shortest = self.alike[m.op, m.ranks, m.size]
        rate = self.rate.get((m.op, m.ranks), 0.0)
        return (
            min(shortest, m.size / rate) if m.size >= LARGE and rate > 0 else shortest
        )


def other_gpu(old: Gpu, new: Gpu, draft: Draft) -> Callable[[Node], float]:
    """Factor on a recorded kernel when it runs on another GPU: by its tables where they have it, else by datasheet."""

    def factor(node: Node) -> float:
        kernel = kernel_of(node.op)
        if kernel.kind in ("gemm", "gemm_bias") and kernel.shape:
            draft.notes[f"kernels rescaled by tables ({new.evidence(kernel)})"] += 1
            return new.duration(kernel) / old.duration(kernel)
        draft.notes["kernels rescaled by datasheet limits (datasheet)"] += 1
        if node.family in ARITHMETIC:
            dtype = (
                kernel.dtype
                if kernel.dtype in old.peak and kernel.dtype in new.peak
                else "bf16"
            )
            return old.peak[dtype] / new.peak[dtype]
        return old.bandwidth / new.bandwidth

    return factor


def together(gpu: Gpu, ranks: int) -> Callable[[Node], float]:
    """Factor on the kernels of a GPU that comes to work with others: lower clocks, and waiting for the slowest."""
    slowest = slowest_of(ranks, gpu.spread)
    return lambda node: slowest * (gpu.crowded if node.family in ARITHMETIC else 1.0)


def beside_communication(gpu: Gpu | None) -> Callable[[Node], float]:
    """How much longer a recorded kernel took beside a collective with all its channels."""
    sms = gpu.sms if gpu is not None else UNKNOWN_SMS
    return lambda node: BUNDLED.slowdown(shaped(kernel_of(node.op)), CHANNELS, sms)


def shaped(kernel: Kernel) -> Kernel:
    """A matrix product of unknown shape as one that fills the GPU, for its slowdown by others."""
    return (
        replace(kernel, shape=FILLS)
        if kernel.kind in ("gemm", "gemm_bias") and not kernel.shape
        else kernel
    )
