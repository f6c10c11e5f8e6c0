"""The new weights to the generation engines, and what phases move before they can begin.

Every trainer gathers whole tensors from its pipeline, tensor- and expert-parallel group, one after the other
(Megatron-Bridge's export). On the same GPUs an engine takes its part from there; on others the first trainer
broadcasts them. Between phases, optimizer states, weights and engines go to the hosts' memory and come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.rl.decode import Engine
from prestep.sim.rl.pools import Pools
from prestep.sim.rl.training import Trained
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec

WEIGHT = 2.0  # bytes: trainers send 16 bits, engines make fp8 of them


@dataclass(frozen=True)
class Refit:
    """Seconds of a refit by what they are for, and bytes of all weights.

    `gather` and `broadcast` are on the links, `tensors` is the host's, `copies` those of phases that change.
    """

    gather: float
    broadcast: float
    tensors: float
    copies: float
    bytes: float
    count: int

    @property
    def seconds(self) -> float:
        return self.gather + self.broadcast + self.tensors + self.copies


def refit_of(pools: Pools, engine: Engine, trained: Trained) -> Refit:
    """The refit of one step."""
    size, count = total_parameters(pools.model) * WEIGHT, tensors_of(pools.model)
    copies = _copies(pools, engine, trained) if pools.colocated else 0.0
    broadcast = 0.0 if pools.colocated else _broadcast(pools, size)
    host = count * pools.constants.tensor_host
    return Refit(_gather(pools, size), broadcast, host, copies, size, count)


def tensors_of(m: ModelSpec) -> int:
    """Tensors of a model's checkpoint: each projection of each expert is one."""
    experts = sum(map(m.has_experts, range(m.layers)))
    of_ffn = 3 if m.gated else 2
    attention = 7 if m.latent else 4
    norms = 2 + (2 if m.qk_norm or m.latent else 0)
    routed = experts * (of_ffn * (m.experts + min(1, m.shared_experts)) + 1)
    dense = (m.layers - experts) * of_ffn
    return m.layers * (attention + norms) + routed + dense + 3


def _gather(pools: Pools, size: float) -> float:
    """Whole tensors on every trainer: one group that holds the model once, all others beside it at the same time."""
    p = pools.scenario.parallel
    inner = max(p.tp * p.cp, p.ep)
    within, fabric, nccl = pools.training[:inner], pools.fabric, pools.scenario.nccl
    bandwidth, total = fabric.links.bandwidth, 0.0
    if p.pp > 1:
        # a stage's neighbours in the pipeline are so many GPUs further; each sends its own part alone
        apart = len(pools.training) // p.pp
        line = pools.training[::apart]
        plan = plan_collective("broadcast", size / inner, line, fabric, nccl)
        total += plan.duration(bandwidth)
    if inner > 1:
        plan = plan_collective("all_gather", size, within, fabric, nccl)
        total += plan.duration(bandwidth)
    return total


def _broadcast(pools: Pools, size: float) -> float:
    """From the first trainer to all that generate."""
    receivers = [gpu for engine in pools.engines for gpu in engine]
    ranks = [*pools.training, *receivers]
    plan = plan_collective("broadcast", size, ranks, pools.fabric, pools.scenario.nccl)
    return plan.duration(pools.fabric.links.bandwidth)


def _copies(pools: Pools, engine: Engine, trained: Trained) -> float:
    """Optimizer states, weights of training and of the engine: each down to memory once a step, and up again."""
    fullest = max(
        trained.prediction.peak_memory.values(),
        key=lambda memory: memory.optimizer + memory.parameters,
    )
    moved = 2 * (fullest.optimizer + fullest.parameters + engine.weights)
    if pools.rl.with_reference:
        moved += 2 * fullest.parameters  # policy and reference change places, twice
    return moved / pools.copy_bandwidth
