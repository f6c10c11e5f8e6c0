"""What a Megatron rank holds for its optimizer, and the optimizer's step."""

from __future__ import annotations

from prestep.workloads import orthogonal
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.megatron.state_types import StateTypes, state_types
from prestep.workloads.memory.account import Storage
from prestep.workloads.orthogonal import Matrices
from prestep.workloads.sharding import host_optimizer
from prestep.workloads.sharding.layer_buckets import QUANTIZED

# Bytes of a parameter in fp32, and of each of its moments; moments that AdamW keeps.
FP32, ADAMW_MOMENTS = 4, 2
EMBEDDING = "nccl embedding"


def resident(rank: Rank, types: StateTypes) -> list[Storage]:
    """Parameters, gradient buffer and optimizer states."""
    memory, states = rank.tape.memory, states_of(rank)
    parameters, gradients, buffers = rank.data.held(rank.parameters, states)
    parameters += frozen_bytes(rank)
    hidden = sum(each.elements for each in matrices_of(rank))
    moments = types.both_moments * (states - hidden)
    moments += FP32 * rank.optimizer.moments * hidden
    away = host_optimizer.elements(rank, states)
    on_host = (1 + ADAMW_MOMENTS) * FP32 * away
    if away:
        memory.keep_on_host("optimizer", float(on_host))
        memory.keep_on_host("gradients", float(FP32 * away))
    main = 0 if rank.data.updates_shards else types.main
    held = main * states + moments - on_host
    return [
        Storage(memory, float(parameters), "parameters"),
        Storage(memory, float(gradients), "gradients"),
        Storage(memory, float(held), "optimizer"),
        Storage(memory, float(buffers), "buffers"),
    ]


def frozen_bytes(rank: Rank) -> int:
    """Weights that stay as they are, or their shards here: in 16 bits, layers' in 8 where they are kept so."""
    total, data = 0, rank.data
    for name, weights in rank.frozen.items():
        each = 1 if rank.s.adapter.fp8_weights and name in QUANTIZED else 2
        experts = weights.experts // data.frozen_expert_shards
        total += each * (weights.shared // data.frozen_shards + experts)
    return total


def states_of(rank: Rank) -> int:
    """Parameters whose optimizer states are here: experts' are spread over the ranks that have the same ones."""
    experts, shared = rank.experts, rank.parameters - rank.experts
    return shared // rank.data.shards + experts // rank.data.expert_shards


def reduce_tied(rank: Rank) -> None:
    """The gradients of an embedding that the last stage uses as its head are summed over both."""
    apart = rank.owner[0] != rank.owner[-1]  # in a V the first rank has both
    if (
        rank.model.m.tied_embeddings
        and not rank.model.frozen
        and apart
        and {0, len(rank.owner) - 1} & set(rank.stages)
    ):
        size = float(rank.wide * rank.model.embedding.parameters["embedding"])
        rank.groups.ends(rank.tape.rank).collective(
            rank.tape, "all_reduce", size, EMBEDDING
        )
        rank.tape.wait(rank.tape.record(EMBEDDING))


def matrices_of(rank: Rank) -> list[Matrices]:
    """Hidden matrices that the optimizer makes orthogonal, each rank the parts that it holds; none under AdamW."""
    if not rank.optimizer.iterations:
        return []
    return [
        matrices
        for stage in rank.stages
        for unit, times in rank.parts(stage)
        if unit.name != "head"
        for matrices in unit.matrices * times
    ]


def optimize(rank: Rank) -> None:
    """Norm of the gradients, the update in fp32, parameters back to bf16 (and gathered again where sharded)."""
    t = rank.tape
    t.phase, t.layer = 2, -1
    t.memory.begin_update()
    t.cpu("optimizer_step")
    # Gradients of shards are cast before the norm; what was updated is copied, or quantized, after it.
    tensors = rank.data.updated_tensors
    t.cpu("optimizer_param", tensors / 2)
    _clip(rank, states_of(rank))
    t.cpu("optimizer_param", tensors / 2)
    if rank.o.fp8_param_gather and rank.o.fp8_scaling != "mx":
        t.cpu("optimizer_fp8", tensors * rank.matrices / rank.tensors)
    count = host_optimizer.elements(rank, states_of(rank))
    if not count:
        _update(rank)
    else:
        on_host = host_optimizer.HostOptimizer(rank, count)
        on_host.send()
        _update(rank, count)
        on_host.update()
    rank.data.updated()
    if "full_iteration" in rank.o.cuda_graph_scope and not rank.o.clip_grad_on_device:
        # The host learns whether all ranks have updated, and the norm (training.py, train_step); elsewhere it has so
        # much less to do before the next launch that it is not counted.
        t.synchronize()


def _update(rank: Rank, on_host: int = 0) -> None:
    """Gradients are clipped, then Adam reads gradient and states and writes the states and the parameter in 16 bits.

    Megatron clips gradients before it, and reads the fp32 parameters again after it for the copy.
    """
    t, matrices = rank.tape, matrices_of(rank)
    hidden = sum(each.elements for each in matrices)
    others = states_of(rank) - hidden - on_host
    types = state_types(rank.s)
    clipping = types.clipped(rank.wide) if rank.data.clips else 0
    moved = clipping + types.updated(rank.wide)
    first = rank.data.early(others)
    if first:
        pass_over(t, first, float(moved * first))
        rank.data.updated_early()
    if others > first:
        pass_over(t, others - first, float(moved * (others - first)))
    if matrices:
        copied = float((clipping + 2) * hidden)
        pass_over(t, hidden, copied)
        orthogonal.update(t, matrices, rank.optimizer.iterations, wide=4)


def _clip(rank: Rank, n: int) -> None:
    """Gradients are copied to fp32 where they are not, unscaled in fp16 runs, and their norm is found."""
    t = rank.tape
    copied = state_types(rank.s).copied(rank.wide)
    moved = float((copied + 8 * rank.model.loss_scaled + 4) * n)
    pass_over(t, n, moved)
    if rank.grid.pp * rank.grid.tp > 1:
        group = rank.groups.model_parallel(rank.tape.rank)
        group.collective(t, "all_reduce", 4.0, "nccl mp")
        if not rank.o.clip_grad_on_device:
            t.synchronize("nccl mp")  # the norm is read by the host: clip_grad_norm
