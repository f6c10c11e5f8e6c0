"""The section [parallel] of a scenario: how it is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from prestep.sim.strict import key

MIB = 2.0**20
#: A key of PyTorch's own engine.
pytorch = partial(key, of="pytorch")


@dataclass(frozen=True)
class Parallel:
    """How it is spread: dp x tp x pp x cp GPUs; ep lives inside dp x cp, as in PyTorch."""

    dp: int = key(1, "data-parallel replicas", low=1)
    tp: int = key(1, "tensor-parallel ranks", low=1)
    pp: int = key(1, "pipeline ranks", low=1)
    cp: int = key(1, "context-parallel ranks", low=1)
    ring_degree: int | None = key(
        None,
        "context-parallel ranks whose keys and values go around a ring; each group of cp / ring_degree neighbours "
        "exchanges heads for tokens by all-to-alls (Ulysses). 1: Ulysses alone (Megatron's cp_comm_type a2a); between: "
        "both (a2a+p2p; diffusers' ring_degree and ulysses_degree); default cp: a ring alone",
        low=1,
        wants="parallel.cp > 1",
    )
    ep: int = key(1, "expert-parallel ranks", low=1)
    etp: int | None = key(
        None,
        "ranks of one expert, 1 or tp, its default (megatron; with 1, ep lives inside dp x cp x tp)",
        low=1,
        wants="model.experts > 0",
    )
    imbalance: str | tuple[float, ...] = key(
        "uniform",
        'tokens by expert (megatron): uniform, zipf, "zipf 0.5" (its exponent), "gini 0.2", a router of routings.toml '
        "(qwen3-moe), a file of recorded counts (.csv, .json), or a load for each",
    )
    routing: Literal["any", "consecutive"] = key(
        "any",
        "experts of a token (megatron): any of them, or neighbours, the next token the next ones (Automodel's "
        "fake_balanced_gate)",
        wants="model.experts > 0; megatron.moe_token_dispatcher = flex",
    )
    natural_routing: bool = key(
        False,
        "tokens go where a trained router sends them (megatron, automodel): balanced experts are simulated, and the "
        "interval says how much longer such steps took; a recipe that does not force balance sets it",
        wants="model.experts > 0",
    )
    vpp: int = key(1, "pipeline stages per rank", low=1)
    data_parallel: (
        Literal["none", "ddp", "ddp-no-overlap", "fsdp", "zero1", "zero2", "zero3"]
        | None
    ) = key(
        None,
        "how gradients are combined; default ddp if dp * cp > 1, else none",
        wants="replicated",
    )
    bucket_cap: float | None = pytorch(
        None,
        "size of a DDP gradient bucket; default 25 MiB after a first one of 1 MiB",
        unit="bytes",
        above=0,
        wants="parallel.data_parallel = ddp or ddp-no-overlap or zero1",
    )
    gradient_as_bucket_view: bool = pytorch(
        True,
        "DDP gradients are views of the buckets",
        wants="parallel.data_parallel = ddp or ddp-no-overlap or zero1",
    )
    fsdp_shards: int | None = key(
        None,
        "ranks that hold one copy of the parameters under FSDP (fewer: HSDP); default dp * cp",
        low=1,
        wants="parallel.data_parallel = fsdp or zero2 or zero3",
    )
    reshard_after_forward: bool | None = key(
        None,
        "FSDP frees gathered parameters after the forward pass; default: unless pp > 1 or zero2",
        wants="resharded",
    )
    root_groups: Literal["one", "split"] = pytorch(
        "one",
        "FSDP2's groups outside the blocks: one of all, or the embedding apart from the last norm and the head "
        "(torchtitan); a tied embedding stays with the head",
        wants="parallel.data_parallel = fsdp or zero2 or zero3",
    )
    reshard_root: bool = pytorch(
        False,
        "FSDP2 frees the root's parameters (split: those of the last norm and the head) after the forward pass and "
        "gathers them again; default: they stay, as with fully_shard's reshard_after_forward = None",
        wants="parallel.data_parallel = fsdp or zero2 or zero3",
    )
    offload: Literal["none", "parameters", "optimizer"] = key(
        "none",
        "parameters: FSDP2 keeps parameters, gradients and optimizer in the host's memory (CPUOffloadPolicy); "
        "optimizer: DeepSpeed (ZeRO-Offload) and Megatron (optimizer_cpu_offload) keep the optimizer's state there; "
        "the host updates them",
    )
    offload_fraction: float = key(
        1.0,
        "share of the parameters whose optimizer's state is there (megatron: optimizer_offload_fraction)",
        low=0,
        wants="parallel.offload = optimizer",
    )
    offload_pinned: bool = key(
        True,
        "copies go between pinned memory and the GPU (DeepSpeed's pin_memory); else through the driver's own buffers, "
        "and the host waits for them",
        wants="parallel.offload = parameters or optimizer",
    )
    offload_threads: int | None = key(
        None,
        "threads of the CPU that update a rank's parameters (OMP_NUM_THREADS); default: 1 where a host has several "
        "ranks, as torchrun sets it, else 16",
        low=1,
        wants="parallel.offload = parameters or optimizer",
    )
    sequence_parallel: bool = key(
        False,
        "tensor parallelism splits the norms along the sequence",
        wants="parallel.tp > 1",
    )
    uneven_stages: bool = key(
        False,
        "let the first pipeline stages hold one layer more when layers do not divide",
        wants="parallel.pp > 1",
    )
    schedule: str = key(
        "1f1b",
        "pipeline schedule; `prestep list schedules`",
        names="schedules",
        wants="parallel.pp > 1",
    )
    microbatches: int | None = key(None, "the same as training.microbatches", low=1)
    order: str | None = key(
        None,
        'axes from the innermost, on neighbouring ranks; default "tp-cp-ep-pp-dp", megatron: "tp-cp-ep-dp-pp"',
    )

    @property
    def rings(self) -> int:
        """Context-parallel ranks whose keys and values go around; the others exchange heads."""
        return self.cp if self.ring_degree is None else min(self.cp, self.ring_degree)

    @property
    def reshards(self) -> bool:
        """Whether FSDP frees parameters after forward: in a pipeline each microbatch would gather them again."""
        if self.reshard_after_forward is None:
            return self.pp == 1 and self.data_parallel != "zero2"
        return self.reshard_after_forward

    @property
    def bucket_caps(self) -> tuple[float, float]:
        """Caps of the first bucket and of the others; saying a cap makes them equal, as in PyTorch."""
        return (
            (MIB, 25 * MIB)
            if self.bucket_cap is None
            else (self.bucket_cap, self.bucket_cap)
        )
