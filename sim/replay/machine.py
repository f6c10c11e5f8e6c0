"""The machine that a replay runs on: recorded kernels, and communication as recorded or planned on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from prestep.sim.collectives import machine as constants
from prestep.sim.collectives.plan import nccl_of
from prestep.sim.collectives.settings import COMMUNICATORS, Nccl
from prestep.sim.costs import Gpu, load_gpu
from prestep.sim.costs.changed import AS_MODEL, Speed, changed
from prestep.sim.costs.interference import BUNDLED, Beside, laid_over
from prestep.sim.costs.measured import gpu_of
from prestep.sim.costs.spreads import slowest_of
from prestep.sim.engine.engine import Timed
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain
from prestep.sim.planning.fleet import speeds_of
from prestep.sim.replay.network import plans_of
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.workloads.traces.changes import scale
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.kernels import SPIN, kernel_of
from prestep.workloads.traces.replay import Job, Replay
from prestep.workloads.traces.straggler import with_rank
from prestep.workloads.traces.work import COMMUNICATION

# Clusters that stand for a recorded GPU where none is named: (word in its name, bundled cluster), best first.
CLUSTERS = (
    ("H200", "h200-host-4"),
    ("H200", "dgx-h200"),
    ("H100", "dgx-h100"),
    ("H800", "hgx-h800"),
    ("A100", "dgx-a100"),
    ("B200", "dgx-b200"),
)
# Channels of a ring on NVLink, and SMs of a GPU of unknown make (A100's and H100's are 108 and 132).
CHANNELS, UNKNOWN_SMS = 24, 108
UNMATCHED = "kernels of communication that no collective names, as recorded"
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
        cluster = _like(job, world)
    fabric = load_cluster(cluster, overrides=links, where="--set")
    if len(fabric.gpus) < world:
        gpus, expected = (
            f"{len(fabric.gpus)} GPUs",
            f"at least {world}, one for each rank",
        )
        raise InputError.of(cluster, "", gpus, expected)
    return fabric


def _like(job: Job, world: int) -> str:
    """The bundled cluster of the recorded GPU."""
    for word, name in CLUSTERS:
        if word in job.device.upper() and len(load_cluster(name).gpus) >= world:
            return name
    ranks = f"{world} ranks on {job.device or 'a GPU that the traces do not name'}"
    hint = "name one: `prestep list clusters`"
    raise InputError.of("--cluster", "", ranks, "a cluster", hint)


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
    single = (entry for entry in fields(Nccl) if entry.name not in COMMUNICATORS)
    kinds = {entry.name: str(entry.type) for entry in single}
    values: dict[str, object] = {"version": job.nccl} if job.nccl else {}
    for key, text in changed.items():
        if key not in kinds:
            raise InputError(unknown("--set", f"nccl.{key}", key, kinds))
        try:
            values[key] = _value(text, kinds[key])
        except ValueError:
            raise InputError.of(
                "--set", f"nccl.{key}", f'"{text}"', "a number"
            ) from None
    return nccl_of(values, "--set nccl")


def _value(text: str, kind: str) -> object:
    """A setting's value by the annotation of its field."""
    if "bool" in kind:
        return text.lower() in ("true", "1", "yes")
    if "int" in kind:
        return int(text)
    return float(text) if "float" in kind else text


def timed(
    replay: Replay, fabric: Fabric | None, before: Fabric | None, nccl: Nccl
) -> tuple[Timed, int]:
    """Recorded kernels, and communication as recorded, or on a fabric (`before`: the same without changes).

    Also counts the communications of unknown size, which are played as recorded.
    """
    interferes = _interferes(replay.draft)
    beside, gpu = _beside(fabric), _gpu(replay.job, fabric)
    kernels = replay.graph.kernels
    held = CHANNELS if interferes else 0
    plans, unknown_sizes = plans_of(replay, fabric, before, nccl, held)
    return Timed(
        graph=replay.graph,
        durations=replay.duration,
        plans=plans,
        bandwidth=fabric.links.bandwidth if fabric is not None else np.zeros(0),
        slowdown=Slowdown(
            kernels, beside, gpu.sms if gpu is not None and interferes else 0
        ),
        contention=beside.communication if fabric is not None else 1.0,
        hops=beside.hops if fabric is not None else 1.0,
        idle=frozenset(i for i, kernel in enumerate(kernels) if kernel.kind == SPIN),
        exclusive=replay.draft.interferes,
    ), unknown_sizes


def _gpu(job: Job, fabric: Fabric | None) -> Gpu | None:
    return recorded_gpu(job) if fabric is None else gpu_of(fabric)


def _beside(fabric: Fabric | None) -> Beside:
    """What communication costs kernels: what the cluster's file of constants says."""
    if fabric is None:
        return BUNDLED
    return laid_over(constants.of(fabric).tables.get("overlap", {}))


def _interferes(draft: Draft) -> bool:
    """Whether communication slows kernels: those that were recorded have that of recorded communication in them."""
    return draft.interferes or draft.relieved


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Factor on a recorded kernel, by index, beside new communication; without `sms` there is none."""

    kernels: Sequence[Kernel | Chain]
    beside: Beside
    sms: int

    def __call__(self, kernel: int, channels: int) -> float:
        recorded = self.kernels[kernel]
        if not self.sms or isinstance(recorded, Chain):
            return 1.0
        return self.beside.slowdown(shaped(recorded), channels, self.sms)


def other_gpu(old: Gpu, new: Gpu, draft: Draft) -> Callable[[Node], float]:
    """Factor on a recorded kernel when it runs on another GPU: by its tables where they have it, else by datasheet."""

    def factor(node: Node) -> float:
        if node.family == COMMUNICATION:
            draft.notes[UNMATCHED] += not node.comms
            return 1.0
        kernel = kernel_of(node.op)
        if kernel.is_product and kernel.shape:
            draft.notes[f"kernels rescaled by tables ({new.evidence(kernel)})"] += 1
            return new.duration(kernel) / old.duration(kernel)
        draft.notes["kernels rescaled by datasheet limits (datasheet)"] += 1
        if node.family in ARITHMETIC:
            both = kernel.dtype in old.peak and kernel.dtype in new.peak
            dtype = kernel.dtype if both else "bf16"
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
        if kernel.is_product and not kernel.shape
        else kernel
    )


def change_gpus(draft: Draft, fabric: Fabric, model: Gpu) -> None:
    """Kernels of each rank as its GPU runs them, after the cluster's changes of GPUs.

    Ranks that were not recorded do what the first recorded one does; one of every other speed is played by itself.

    Raises
    ------
    InputError
        If a GPU of another speed is that of a rank without a trace, in a run whose ranks differ.
    """
    own = speeds_of(fabric, model, fabric.gpus[: draft.world])
    # A run of fewer ranks than were recorded may keep a rank beyond them, which stands for all.
    speeds = {
        rank: own[rank % draft.world] for rank in (*range(draft.world), *draft.programs)
    }
    for rank in _unplayed(draft, speeds).values():
        with_rank(draft, rank, f"gpu of rank {rank}")
    other = [rank for rank in draft.programs if speeds[rank] != AS_MODEL]
    counts = [
        scale(draft, _factor(draft, model, speeds[rank]), only=[rank]) for rank in other
    ]
    if other and not any(counts):
        raise InputError(_untouched(draft))


def _untouched(draft: Draft) -> Mistake:
    """A change of GPUs that no recorded kernel follows: nobody knows what the kernels do, or they do none of it."""
    names = (node.op.name for nodes in draft.programs.values() for node in nodes)
    kernels = sorted({name for name in names if not name.startswith(("begin", "end"))})
    found = f"no kernel that follows it, among {', '.join(kernels[:3])}"
    hint = "such as one that prestep wrote of layers as a whole; `prestep run --set` changes the scenario"
    expected = "a trace of single kernels whose names say what they do"
    return Mistake("--set", "gpu", found, expected, hint)


def _unplayed(draft: Draft, speeds: Mapping[int, Speed]) -> dict[Speed, int]:
    """Speeds that no rank with a program has, and the first rank that has each."""
    played = {speeds[rank] for rank in draft.programs}
    first = {speed: rank for rank, speed in reversed([*speeds.items()])}
    return {speed: rank for speed, rank in first.items() if speed not in played}


def _factor(draft: Draft, model: Gpu, speed: Speed) -> Callable[[Node], float]:
    return other_gpu(model, changed(model, speed), draft)
