"""What pictures and traces show of a run beside its timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.analysis.allocations import Allocations
from prestep.sim.analysis.kernels import KernelUse
from prestep.sim.costs import Gpu
from prestep.sim.engine.traffic import Traffic
from prestep.sim.planning.job import Job
from prestep.topologies.fabric import Fabric

if TYPE_CHECKING:
    from prestep.sim.analysis.chain_kernels import Chains


@dataclass(frozen=True, eq=False)
class Details:
    """What pictures and traces show of a run beside its timeline.

    Attributes
    ----------
    job, fabric, gpu : Job, Fabric, Gpu
        What was predicted, on which cluster, of which GPUs.
    gpus : tuple of str
        The GPU of every rank.
    represents : mapping
        Ranks that each simulated one stands for.
    traffic, carried : Traffic, np.ndarray
        What moved on the network when, and the bytes that every link carried.
    kernels : tuple of KernelUse
        Of the last step, most time first.
    allocations : mapping
        The allocator's log by simulated rank.
    chains : Chains or None
        What opens rows of layers into their kernels; None: there are none.
    request : object
        The scenario, for whoever predicts it again with changes; None: it is not kept.
    """

    job: Job
    fabric: Fabric
    gpu: Gpu
    gpus: tuple[str, ...]
    represents: Mapping[int, tuple[int, ...]]
    traffic: Traffic
    carried: np.ndarray
    kernels: tuple[KernelUse, ...]
    allocations: Mapping[int, Allocations]
    chains: Chains | None = None
    request: object = None
