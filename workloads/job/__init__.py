"""A job: what is trained, and how. One module for each section of a scenario that a framework reads."""
# ruff: noqa: RUF009 - a section is frozen: all jobs may share the default one

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.faults import Faults
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.job.training import Training


@dataclass(frozen=True)
class JobSpec:
    """What a framework reads of a scenario, by its keys; `where`: the file it came from, for mistakes.

    What later stages are handed, once a step is lowered, is `prestep.sim.planning.job.Job`.
    """

    model: Model = Model()
    training: Training = Training()
    parallel: Parallel = Parallel()
    megatron: Megatron = Megatron()
    pytorch: PyTorch = PyTorch()
    adapter: Adapter = Adapter()
    faults: Faults = Faults()
    where: str = "scenario"
