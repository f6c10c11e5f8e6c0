"""Who calls Megatron's layers, adds up their gradients and reduces them: Megatron itself, or another around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prestep.workloads.job import JobSpec
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.megatron import optimizer, torch_optimizer
from prestep.workloads.megatron.rank import DataParallel, Rank
from prestep.workloads.megatron.state_types import StateTypes, state_types
from prestep.workloads.sharding import layers, replicated, zero3_layers
from prestep.workloads.sharding.replicated import added_by_buckets

FSDP = ("fsdp", "zero3")
STAGES = {"zero1": 1, "zero2": 2}  # those that keep parameters whole


def _of_megatron(rank: Rank, deepspeed: bool = False) -> DataParallel:
    """Fully sharded where asked, or whole parameters whose gradients Megatron or DeepSpeed reduces."""
    p = rank.s.parallel
    several = rank.dp.size > 1 or p.offload != "none"
    if p.data_parallel in FSDP and several:
        fully = zero3_layers.GatheredUnits if deepspeed else layers.megatron
        return fully(rank, shards_of(rank))
    stage = STAGES.get(p.data_parallel or "", 0)
    if deepspeed or stage == 2:
        sums = deepspeed and rank.o.deepspeed_version != "0.6"
        return replicated.deepspeed(rank, stage, sums)
    return replicated.megatron(rank, sharded=stage == 1)


def shards_of(rank: Rank) -> int:
    """Ranks that hold one copy of the parameters under FSDP."""
    ranks = rank.dp.size
    return min(rank.s.parallel.fsdp_shards or ranks, ranks)


@dataclass(frozen=True)
class Engine:
    """What DeepSpeed and PyTorch do in other ways.

    Attributes
    ----------
    data_parallel
        What the passes of a rank do with gradients and parameters.
    gathers
        Of activations that travel between stages in parts, in a backward pass.
    owns_gradients
        Whether PyTorch adds gradients up, not Megatron's own buffer.
    serial
        Whether a transfer between stages ends before the rank's next one begins, or any computation.
    unpacked
        Bytes moved for each byte of an activation that was gathered, beyond the exchange.
    pipelines
        Whether stages are `torch.distributed.pipelining`'s: its order of transfers, on one communicator, whole
        activations.
    state_types, optimize
        What the optimizer keeps of a parameter, and its step.
    """

    data_parallel: Callable[[Rank], DataParallel] = _of_megatron
    gathers: int = 1
    owns_gradients: bool = False
    serial: bool = False
    unpacked: float = 0.0
    pipelines: bool = False
    state_types: Callable[[JobSpec], StateTypes] = state_types
    optimize: Callable[[Rank], None] = optimizer.optimize

    def trainer(self, scenario: JobSpec) -> PyTorch | None:
        """PyTorch's switches, where layers are its modules and not Megatron's."""
        return scenario.pytorch if self.pipelines else None

    def added(self, scenario: JobSpec) -> float | None:
        """Bytes moved for an element of a weight's gradient beyond its GEMM; None: into Megatron's own buffer."""
        p = scenario.parallel
        buckets = ("zero2", *FSDP) if self.owns_gradients else ("zero2",)
        if self.pipelines or (p.data_parallel in buckets and p.dp * p.cp > 1):
            return 0.0  # FSDP adds it up, or it goes into the bucket
        return added_by_buckets(scenario) if self.owns_gradients else None


MEGATRON = Engine()
# It keeps its own output in parts too. Gathered ones (PartitionedTensor.full of runtime/utils.py) are zeroed, gathered
# by PyTorch into a buffer of its own, copied out of it, and cloned: a byte written and two copies.
DEEPSPEED = Engine(
    lambda rank: _of_megatron(rank, deepspeed=True),
    gathers=2,
    owns_gradients=True,
    serial=True,
    unpacked=5.0,
)
PYTORCH = Engine(
    lambda rank: layers.automodel(rank, shards_of(rank)),
    owns_gradients=True,
    pipelines=True,
    state_types=torch_optimizer.state_types,
    optimize=torch_optimizer.optimize,
)
