"""The optimizer of Megatron-like layers that PyTorch trains: updates of shards as they are stored, without copies."""

from __future__ import annotations

from prestep.workloads.job import JobSpec
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.megatron.shard import EXPERTS_PREFIX
from prestep.workloads.megatron.state_types import StateTypes
from prestep.workloads.torch.optimizer_step import OptimizerStep
from prestep.workloads.torch.tape import Tensor


def state_types(scenario: JobSpec) -> StateTypes:
    """Bytes of Adam's moments of a parameter, which has no copy."""
    choices = scenario.pytorch
    moment = 4 if choices.master_weights or choices.wide_moments else 2
    return StateTypes(0, (moment, moment))


def stored(rank: Rank) -> list[Tensor]:
    """What this rank keeps of its trained parameters, as the optimizer sees them."""
    shards: list[Tensor] = []
    for unit, times in rank.units:
        for name, elements in unit.parameters.items():
            if rank.is_tied(name):
                continue
            experts = name.startswith(EXPERTS_PREFIX)
            ranks = rank.data.expert_shards if experts else rank.data.shards
            shard = Tensor(None, (max(1, elements // ranks),))
            shard.name = name
            shards += [shard] * times
    return shards


def optimize(rank: Rank) -> None:
    """Clips gradients if asked for, and updates."""
    t = rank.tape
    t.phase, t.layer = 2, -1
    t.memory.begin_update()
    parts = [rank.dp]
    if rank.grid.pp * rank.grid.tp > 1:
        parts.append(rank.groups.model_parallel(rank.tape.rank))
    choices = rank.s.pytorch
    step = OptimizerStep(t, rank.optimizer, choices, True, parts=tuple(parts))
    step.update(stored(rank))
