"""What a Megatron rank holds for its optimizer, and the optimizer's step."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.megatron.rank import Rank
from workloads.torch.tape import Storage

ADAM = 12  # bytes a parameter: fp32 parameter and two moments
EMBEDDING = "nccl embedding"


def resident(rank: Rank) -> list[Storage]:
    """Parameters, gradient buffer and optimizer states."""
    memory, states = rank.tape.memory, states_of(rank)
    parameters, gradients = rank.data.held(rank.parameters, states)
    return [
        Storage(memory, float(parameters), "parameters"),
        Storage(memory, float(gradients), "gradients"),
        Storage(memory, float(ADAM * states), "optimizer"),
    ]


def states_of(rank: Rank) -> int:
    """Parameters whose optimizer states are here: experts' are spread over the ranks that have the same ones."""
    experts, shared = rank.experts, rank.parameters - rank.experts
    return shared // rank.data.shards + experts // (
        rank.edp.size if rank.data.sharded else 1
    )


def reduce_tied(rank: Rank) -> None:
    """The gradients of an embedding that the last stage uses as its head are summed over both."""
    apart = rank.owner[0] != rank.owner[-1]  # in a V the first rank has both
    if (
        rank.model.m.tied_embeddings
        and apart
        and {0, len(rank.owner) - 1} & set(rank.stages)
    ):
        size = float(rank.wide * rank.model.embedding.parameters["embedding"])
        rank.groups.ends(rank.kind).collective(rank.tape, "all_reduce", size, EMBEDDING)
        rank.tape.wait(rank.tape.record(EMBEDDING))


def optimize(rank: Rank) -> None:
    """Norm of the gradients, Adam on fp32 copies, parameters back to bf16 (and gathered again where sharded)."""
    t, n = rank.tape, states_of(rank)
    tensors = sum(
        times * len(unit.parameters)
        for stage in rank.stages
        for unit, times in rank.parts(stage)
    )
    t.phase, t.layer = 2, -1
    t.cpu("optimizer_step")
    t.cpu("optimizer_param", tensors)
    # Gradients are copied to fp32 where they are not, unscaled in fp16 runs, and their norm is found.
    copied = (rank.wide + 4) * (rank.wide < 4)
    t.launch(
        Kernel(
            "fused", (n,), bytes=float((copied + 8 * rank.model.loss_scaled + 4) * n)
        )
    )
    if rank.grid.pp * rank.grid.tp > 1:
        rank.groups.model_parallel(rank.replica).collective(
            t, "all_reduce", 4.0, "nccl mp"
        )
        t.synchronize("nccl mp")  # the norm is read by the host: clip_grad_norm
    # Adam reads gradient, parameter and moments and writes the last three in fp32, and the parameter in bf16.
    # Megatron clips gradients before it, and reads the fp32 parameters again after it for the copy.
    clipping = 2 * rank.wide + 4 if rank.data.clips else 0
    t.launch(Kernel("fused", (n,), bytes=float((clipping + rank.wide + 24 + 2) * n)))
    rank.data.updated()
