"""The sections of a scenario file, one frozen dataclass each: field = key, type = type, `key` = limits and meaning.

Those that a framework reads are the job's (`prestep.workloads.job`); here are the others, and all of them together.

Quantities carry units in the file and are SI floats here: bytes, seconds, bytes per second. A key that is None was not
said and is decided later, by the model, the cluster or NCCL.
"""

# ruff: noqa: RUF009 - a section is frozen: all scenarios may share the default one

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prestep.sim.collectives.settings import Nccl
from prestep.sim.spec.inference import Inference
from prestep.sim.strict import key, table
from prestep.workloads.job import Job
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.checkpoint import Checkpoint
from prestep.workloads.job.dataload import Dataload
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
        "adaptive",
        "which of the equally good paths bytes take",
        names="routings",
        wants="hosts",
    )
    routing_seed: int = key(
        0,
        "ecmp: the switches' hash; another one, another draw",
        low=0,
        wants="cluster.routing = ecmp; hosts",
    )
    routing_flows: int = key(
        1,
        "ecmp: connections between two GPUs, each hashed by itself",
        low=1,
        wants="cluster.routing = ecmp; hosts",
    )
    set: dict[str, str] = table(
        'changes to links: "selector.attribute" = value or factor, such as "2x"'
    )


@dataclass(frozen=True)
class Placement:
    """Which GPU each rank runs on; not said: all hosts in the cluster's order, one filled after the other."""

    by: Literal["order", "leaf", "rail", "scattered"] = key(
        "order",
        "hosts in order, sorted by leaf, GPU 0 of every host first, or dealt out over the leaves in turn",
        wants="hosts",
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
class Costs:
    """Times that you know better."""

    operators: dict[str, str] = table(
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
    inference: Inference = Inference()
    rl: Rl = Rl()
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
