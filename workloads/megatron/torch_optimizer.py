"""The optimizer of Megatron-like layers that PyTorch trains: Adam on parameters as they are stored, without copies."""

from __future__ import annotations

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.optimizer import ADAMW_MOMENTS, states_of
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.memory.account import Storage
from prestep.workloads.torch.updates import READ

NORM = "nccl norm"


def stored_of(rank: Rank) -> int:
    """Bytes of a stored parameter and of its gradient."""
    return 4 if rank.s.pytorch.master_weights else 2


def moment_of(rank: Rank) -> int:
    """Bytes of a moment of a parameter's element."""
    return 4 if rank.s.pytorch.wide_moments else stored_of(rank)


def resident(rank: Rank) -> list[Storage]:
    """Shards of parameters, gradients and moments."""
    memory, states = rank.tape.memory, states_of(rank)
    parameters, gradients, _ = rank.data.held(rank.parameters, states)
    moments = ADAMW_MOMENTS * moment_of(rank) * states
    return [
        Storage(memory, float(parameters), "parameters"),
        Storage(memory, float(gradients), "gradients"),
        Storage(memory, float(moments), "optimizer"),
    ]


def optimize(rank: Rank) -> None:
    """Clips gradients if asked for, and updates: one kernel for many tensors, or eight for each."""
    t, choices, n = rank.tape, rank.s.pytorch, states_of(rank)
    stored, moment, tensors = stored_of(rank), moment_of(rank), rank.tensors
    t.phase, t.layer = 2, -1
    t.memory.begin_update()
    if choices.clip_gradients:
        _clip(rank, n, stored)
    t.cpu("optimizer_step_dtensor")
    t.cpu("optimizer_param_dtensor", tensors)
    if choices.fused_optimizer:
        # Gradient read; parameter and moments read and written.
        pass_over(t, n, float((3 * stored + 4 * moment) * n))
        return
    t.cpu("elementwise_nograd", len(READ) * tensors)
    for values in READ:
        pass_over(t, n, float((len(set(values)) + 1) * stored * n))


def _clip(rank: Rank, n: int, stored: int) -> None:
    """Norms of shards, their sum over all ranks that share the model, and gradients scaled by it."""
    t = rank.tape
    pass_over(t, n, float(stored * n))
    groups = [rank.dp]
    if rank.grid.pp * rank.grid.tp > 1:
        groups.append(rank.groups.model_parallel(rank.replica))
    for group in groups:
        if group.size > 1:
            group.collective(t, "all_reduce", 4.0, NORM)
            t.wait(t.record(NORM))
    pass_over(t, n, float(2 * stored * n))
