"""The sections of a scenario file, one frozen dataclass each: field = key, type = type, `key` = limits and meaning.

Those that a framework reads are the job's (`prestep.workloads.job`); here are the others, and all of them together.

Quantities carry units in the file and are SI floats here: bytes, seconds, bytes per second. A key that is None was not
said and is decided later, by the model, the cluster or NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prestep.sim.spec.inference import Inference
from prestep.sim.strict import key, table
from prestep.workloads.job import Job
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.checkpoint import Checkpoint
from prestep.workloads.job.faults import Faults
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.job.rl import Rl
from prestep.workloads.job.training import Training


@dataclass(frozen=True)
class Cluster:
    """Where it runs: a named cluster, or a file."""

    name: str | None = key(None, "named cluster; `prestep list clusters`")
    file: str | None = key(None, "cluster file, relative to the scenario")
    hosts: int | None = key(None, "number of hosts, where the family scales", low=1)
    gpus: int | None = key(None, "use only the first so many GPUs", low=1)
    host_factor: float | None = key(
        None,
        "factor on the host's time for framework code; default: the cluster's",
        above=0,
    )
    host_factor_by_rank: tuple[float, ...] = key(
        (),
        "over host_factor, of the ranks of a host in turn, where they differ: [1, 1.4]",
        above=0,
    )
    host_memory: float | None = key(
        None,
        "memory of a host, for what is kept there instead of on its GPUs; default: the cluster's",
        above=0,
        unit="bytes",
    )
    numa: Literal["local", "wrong"] = key(
        "local",
        "wrong: processes and their memory are on another socket than their GPUs",
    )
    kernel_gap: float | None = key(
        None,
        "pause between two kernels of a stream, such as a profiler leaves; default: the GPU's",
        low=0,
        unit="duration",
    )
    hostfile: str | None = key(
        None, "the allocation, as in [placement]; relative to the scenario"
    )
    routing: str = key(
        "adaptive", "which of the equally good paths bytes take", names="routings"
    )
    routing_seed: int = key(
        0, "ecmp: the switches' hash; another one, another draw", low=0
    )
    routing_flows: int = key(
        1, "ecmp: connections between two GPUs, each hashed by itself", low=1
    )
    set: dict[str, str] = table(  # noqa: RUF009
        'changes to links: "selector.attribute" = value or factor, such as "2x"'
    )


@dataclass(frozen=True)
class Ctas:
    """CTAs that the communicators of an axis are made with; NCCL_MIN_CTAS and NCCL_MAX_CTAS come before them."""

    min_ctas: int | None = key(None, "least channels (ncclConfig_t.minCTAs)", low=1)
    max_ctas: int | None = key(None, "most channels (ncclConfig_t.maxCTAs)", low=1)


# Axes whose communicators may have settings of their own.
COMMUNICATORS = ("dp", "tp", "pp", "cp", "ep", "mp")


@dataclass(frozen=True)
class Nccl:
    """NCCL's settings; what is not said is chosen as NCCL would."""

    backend: Literal["nccl", "gloo", "nvshmem"] = key(
        "nccl",
        "who runs collectives; nvshmem: all-to-alls, sends and gathers as puts from kernels, the rest by NCCL",
    )
    transport: Literal["ibgda", "proxy"] = key(
        "ibgda", "nvshmem: the GPU posts to the NIC, or a thread of the CPU"
    )
    tensors: Literal["gpu", "cpu"] = key(
        "gpu", "gloo: where the tensors live; those on GPUs are copied down and up"
    )
    version: str = key("2.28.9", "version whose tuning tables are used")
    nvls: bool | None = key(
        None, "NVLink SHARP (NCCL_NVLS_ENABLE); default: what the cluster file says"
    )
    collnet: bool | None = key(
        None,
        "SHARP in the network's switches (NCCL_COLLNET_ENABLE); default false, as NCCL's",
    )
    algo: str | None = key(
        None,
        "forced algorithm (NCCL_ALGO); `prestep list algorithms`",
        names="algorithms",
    )
    proto: Literal["LL", "LL128", "Simple"] | None = key(
        None, "forced protocol (NCCL_PROTO)"
    )
    min_channels: int | None = key(None, "NCCL_MIN_NCHANNELS", low=1)
    max_channels: int | None = key(None, "NCCL_MAX_NCHANNELS", low=1)
    min_ctas: int | None = key(None, "NCCL_MIN_CTAS, for all communicators", low=1)
    max_ctas: int | None = key(None, "NCCL_MAX_CTAS; limits NVLink SHARP too", low=1)
    dp: Ctas | None = key(None, "communicators of data parallelism")  # noqa: RUF009
    tp: Ctas | None = key(None, "of tensor parallelism")  # noqa: RUF009
    pp: Ctas | None = key(None, "of the pipeline")  # noqa: RUF009
    cp: Ctas | None = key(None, "of context parallelism")  # noqa: RUF009
    ep: Ctas | None = key(None, "of expert parallelism")  # noqa: RUF009
    mp: Ctas | None = key(None, "of the gradient's norm")  # noqa: RUF009
    buffer_size: float | None = key(
        None, "NCCL_BUFFSIZE; default 4 MiB", unit="bytes", above=0
    )
    p2p_net_chunksize: int | None = key(
        None,
        "NCCL_P2P_NET_CHUNKSIZE: bytes of a message to another host in a slot of a channel's buffer; default 131072",
        low=1,
    )
    p2p_disable: bool = key(
        False, "GPUs of a host talk through its memory (NCCL_P2P_DISABLE)"
    )
    p2p_level: Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"] | None = key(
        None,
        "how far apart GPUs of a host may be to talk directly (NCCL_P2P_LEVEL); default PXB, SYS for 2 on AMD",
    )
    net_gdr_level: Literal["LOC", "PIX", "PXB", "P2C", "PHB", "SYS"] | None = key(
        None,
        "how far a NIC may be from a GPU to read its memory (NCCL_NET_GDR_LEVEL), else the host's; default: any",
    )
    shm_disable: bool = key(
        False,
        "not through memory either: with p2p_disable over the network (NCCL_SHM_DISABLE)",
    )
    cross_nic: int = key(
        2,
        "2 or 0: rings stay on rails between hosts; 1: they need not (NCCL_CROSS_NIC)",
        low=0,
    )
    pxn_disable: bool = key(
        False,
        "messages leave by the sender's own NIC, not its peer's rail (NCCL_PXN_DISABLE)",
    )
    hostid: int | None = key(
        None,
        "ranks that share a pretended host (NCCL_HOSTID): others over the network",
        low=1,
    )
    min_p2p_nchannels: int | None = key(
        None, "channels for messages at least (NCCL_MIN_P2P_NCHANNELS)", low=1
    )
    max_p2p_nchannels: int | None = key(
        None, "channels for messages at most (NCCL_MAX_P2P_NCHANNELS)", low=1
    )
    nchannels_per_net_peer: int | None = key(None, "NCCL_NCHANNELS_PER_NET_PEER", low=1)
    net_speed: float | None = key(
        None,
        "speed NCCL sees of a NIC; 10 Gbit/s where the driver says none; default: the cluster's",
        unit="bandwidth",
    )
    net: Literal["socket"] | None = key(
        None, "TCP sockets instead of RDMA (NCCL_NET=Socket); default: the cluster's"
    )
    socket_nthreads: int | None = key(
        None, "helper threads of a connection (NCCL_SOCKET_NTHREADS); 0: none", low=0
    )
    nsocks_perthread: int | None = key(
        None, "sockets of each helper thread (NCCL_NSOCKS_PERTHREAD)", low=1
    )

    def of(self, axis: str) -> Nccl:
        """The settings of an axis's communicators."""
        own = (getattr(self, axis) if axis in COMMUNICATORS else None) or Ctas()
        if not any(getattr(self, one) for one in COMMUNICATORS):
            return self
        # The environment overrides what a communicator was made with (NCCL, init.cc: envConfigOverride).
        most = own.max_ctas if self.max_ctas is None else self.max_ctas
        least = own.min_ctas if self.min_ctas is None else self.min_ctas
        apart: dict[str, Any] = dict.fromkeys(COMMUNICATORS)
        return replace(self, min_ctas=least, max_ctas=most, **apart)

    @property
    def peers_off(self) -> bool:
        """Whether no two GPUs of a host talk directly."""
        return self.p2p_disable or self.p2p_level == "LOC"

    @property
    def least_channels(self) -> int:
        """Channels that a communicator has at least."""
        return max(self.min_channels or 1, self.min_ctas or 1)

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of the version: (2, 28)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Placement:
    """Which GPU each rank runs on; not said: all hosts in the cluster's order, one filled after the other."""

    by: Literal["order", "leaf", "rail", "scattered"] = key(
        "order",
        "hosts in order, sorted by leaf, GPU 0 of every host first, or dealt out over the leaves in turn",
    )
    gpus: tuple[str, ...] | None = key(None, "GPU of every rank, by name")
    hosts: tuple[str, ...] | None = key(
        None, 'hosts to use, in this order, such as "host[0-3,8]"'
    )
    hostfile: str | None = key(
        None, "file of hosts: mpirun (host slots=8), Slurm (node[01-04]); relative"
    )
    slots: int | None = key(
        None, "ranks on each host; default: one for every GPU", low=1
    )
    leaves: int | None = key(None, "scattered: over so many leaves; default all", low=1)


@dataclass(frozen=True)
class Dataload:
    """Reading the training data."""

    batch_time: float | None = key(
        None, "time of one worker to make one microbatch", unit="duration"
    )
    workers: int = key(
        0, "worker processes per rank; 0: the training process itself", low=0
    )
    prefetch: int = key(
        2, "batches that each worker makes ahead (prefetch_factor)", low=1
    )
    decode: float | None = key(
        None,
        "instead of batch_time: CPU time of one worker for a sample",
        unit="duration",
    )
    sample: float | None = key(
        None,
        "bytes of a sample on the storage, read in random order",
        unit="bytes",
        above=0,
    )
    storage: str | None = key(
        None,
        'where samples are read from; default "nvme"; `prestep list storage`, or a file',
    )
    cpus: int | None = key(
        None, "cores of a host for the workers of all its ranks; default: enough", low=1
    )
    copy: Literal["pageable", "pinned", "beside"] | None = key(
        None,
        "to the GPU: held up by the host, on the step's stream, on a stream of its own; default: in batch_time",
    )


@dataclass(frozen=True)
class Costs:
    """Times that you know better."""

    operators: dict[str, str] = table(  # noqa: RUF009
        'what a call of an operator of a captured program takes on the GPU: "mylib::op" = "12us"'
    )


@dataclass(frozen=True)
class Measured:
    """What a real run of this scenario took; printed beside the prediction, never used by it."""

    step_time: float | None = key(
        None, "median step time over ranks and steps", unit="duration", above=0
    )
    source: str | None = key(None, "where the measurement comes from")
    fitted: bool = key(False, "a constant was fitted to that run; said beside it")


@dataclass(frozen=True)
class Scenario(Job):
    """A run, checked: a job, where it runs, and what surrounds it. `where` is the file it came from.

    With `jobs` the run is theirs: several on one cluster, each with its `name` and the `start` of its first step in
    seconds (None: apart from the others); the other sections are the cluster's, and what the jobs have in common.
    `notes` say what was decided for the reader.
    """

    cluster: Cluster = Cluster()
    nccl: Nccl = Nccl()
    placement: Placement = Placement()
    dataload: Dataload = Dataload()
    inference: Inference = Inference()  # noqa: RUF009
    rl: Rl = Rl()  # noqa: RUF009
    costs: Costs = Costs()
    measured: Measured = Measured()
    name: str = ""
    start: float | None = None
    jobs: tuple[Scenario, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)


#: The tables of a scenario's file, in the order in which they are read and described.
SECTIONS: dict[str, type] = {
    "cluster": Cluster,
    "model": Model,
    "training": Training,
    "parallel": Parallel,
    "megatron": Megatron,
    "pytorch": PyTorch,
    "adapter": Adapter,
    "nccl": Nccl,
    "placement": Placement,
    "checkpoint": Checkpoint,
    "faults": Faults,
    "dataload": Dataload,
    "inference": Inference,
    "rl": Rl,
    "costs": Costs,
    "measured": Measured,
}
