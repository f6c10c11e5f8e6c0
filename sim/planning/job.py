"""What later stages know of a scenario once its step has been lowered: the `Job` that runs, and the `Machine`.

Planning, analysis and storage read these two values and never a key of a scenario: what a key means for a framework is
decided once, by `prestep.sim.lowering`.
"""

# ruff: noqa: RUF009 - a job is frozen: all may share the default values

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from prestep.sim.collectives import machine as constants
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import Gpu
from prestep.sim.costs.interference import Beside, laid_over
from prestep.sim.planning.fleet import Fleet
from prestep.sim.planning.host_memory import Settings
from prestep.sim.planning.host_speed import HostSpeed
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.faults import Faults
from prestep.workloads.lowered import Layout, Place


class Degrees(NamedTuple):
    """Ranks along each axis; experts are spread over ranks of the others."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp


class Batch(NamedTuple):
    """What a rank computes in a step.

    Attributes
    ----------
    samples, microbatches : int
        Samples of a microbatch, and microbatches of a step.
    tokens, attended : int
        Tokens of a sample, and those of them that attention sees (a document's, where several are packed).
    """

    samples: int = 1
    microbatches: int = 1
    tokens: int = 1
    attended: int = 1


class Remarks(NamedTuple):
    """Sentences for the reader of a prediction.

    Attributes
    ----------
    decided, unused, caveats : tuple of str
        What was decided for the reader; keys without a part in the step; what the model of the framework leaves out.
    """

    decided: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """What runs.

    Attributes
    ----------
    where : str
        Where it is described, for mistakes.
    framework, precision, optimizer, data_parallel : str
        By their names.
    steps : int
        To simulate; the last one is reported.
    warmup : int
        Steps before the reported one.
    sharded : bool
        Whether a data-parallel replica keeps only a part of the parameters.
    master, wide_moments : bool
        Whether the optimizer keeps a copy of the parameters in fp32, and its moments in fp32.
    frozen : bool
        Whether adapters are trained and the weights are not.
    joined_load : bool
        Whether elementwise kernels take what the GPU's table says of joined ones.
    in_order, captured : bool
        Whether operations of all streams start in the order of their launches; whether a CUDA graph replays them all.
    routed_freely : str
        What is simulated where a trained router sends tokens: "balanced" experts, which makes a step longer, or an
        "assumed" load; "" where something forces the load, or the scenario says it.
    sections : mapping
        What extensions' sections say, by name, for the effects that they have (`prestep.sim.analysis.effects`).
    measured : float or None
        Seconds of a real run's step, printed beside the prediction; `fitted`: a constant was fitted to it.
    """

    where: str
    framework: str
    precision: str
    optimizer: str
    data_parallel: str
    degrees: Degrees
    batch: Batch
    layout: Layout
    steps: int
    warmup: int
    sharded: bool
    master: bool
    wide_moments: bool
    frozen: bool
    joined_load: bool
    in_order: bool
    captured: bool
    routed_freely: Literal["", "balanced", "assumed"]
    remarks: Remarks = Remarks()
    sections: Mapping[str, Any] = field(default_factory=dict, hash=False)
    measured: float | None = None
    fitted: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Machine:
    """What it runs on.

    Attributes
    ----------
    fabric, fleet : Fabric, Fleet
        The cluster with its changes, and its GPUs by rank.
    gpus : tuple of str
        The GPU of every rank, by name.
    place : Place
        How ranks share hosts, links above them, and NVLink domains.
    memory_rate : float
        Bytes a second that a host's memory gives.
    nccl : Nccl
        Settings of the library that runs collectives.
    toolkit : str
        CUDA's version.
    host : HostSpeed
        How fast hosts run framework code.
    copies : Settings
        What copies between host and GPU depend on, and updates on the host.
    host_memory : float or None
        Bytes of a host; None: as the cluster says.
    kernel_gap : float
        Seconds between two kernels of a stream.
    faults : Faults
        A slow rank, and noise.
    """

    fabric: Fabric
    fleet: Fleet
    gpus: tuple[str, ...]
    place: Place
    memory_rate: float
    nccl: Nccl
    toolkit: str
    host: HostSpeed
    copies: Settings
    host_memory: float | None
    kernel_gap: float
    faults: Faults

    @property
    def gpu(self) -> Gpu:
        """What the GPUs have in common."""
        return self.fleet.gpu

    @cached_property
    def hosts(self) -> int:
        """How many hosts have one of the GPUs."""
        return len({*self.fabric.hosts_of(self.gpus)})

    @property
    def beside(self) -> Beside:
        """What kernels and collectives cost each other here."""
        return laid_over(constants.of(self.fabric).tables.get("overlap", {}))
