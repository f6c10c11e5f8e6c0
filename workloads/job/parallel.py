"""The section [parallel] of a scenario: how it is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from prestep.sim.strict import key

MIB = 2.0**20
#: Keys of PyTorch's own engine, of its buckets, of parameters in shards, and of what the host's memory keeps.
pytorch = partial(key, of="pytorch")
bucketed = partial(
    pytorch, wants="parallel.data_parallel = ddp or ddp-no-overlap or zero1"
)
SHARDED = "parallel.data_parallel = fsdp or zero2 or zero3"
sharded = partial(pytorch, wants=SHARDED)
offloaded = partial(key, wants="parallel.offload = parameters or optimizer")
staged = partial(key, wants="parallel.pp > 1")


@dataclass(frozen=True)
class Parallel:
    """How it is spread: dp x tp x pp x cp GPUs; ep lives inside dp x cp, as in PyTorch."""

    dp: int = key(1, "data-parallel replicas", low=1)
    tp: int = key(1, "tensor-parallel ranks", low=1)
    pp: int = key(1, "pipeline ranks", low=1)
    cp: int = key(1, "context-parallel ranks", low=1)
    ring_degree: int | None = key(
        None,
        "context-parallel ranks in a ring; the rest exchange heads; 1: Ulysses alone; default cp, a ring alone",
        low=1,
        wants="parallel.cp > 1",
    )
    ep: int = key(1, "expert-parallel ranks", low=1)
    etp: int | None = key(
        None,
        "megatron: ranks of one expert, 1 or tp (default)",
        low=1,
        wants="model.experts > 0",
    )
    imbalance: str | tuple[float, ...] = key(
        "uniform",
        'tokens by expert: uniform, "zipf 0.5", "gini 0.2", a measured router, a file of counts, or a load for each',
    )
    routing: Literal["any", "consecutive"] = key(
        "any",
        "experts of a token: any, or neighbours (Automodel's fake_balanced_gate)",
        wants="model.experts > 0; megatron.moe_token_dispatcher = flex",
    )
    natural_routing: bool = key(
        False,
        "a trained router sends tokens, which widens the interval",
        wants="model.experts > 0",
    )
    vpp: int = key(1, "pipeline stages per rank", low=1)
    data_parallel: (
        Literal["none", "ddp", "ddp-no-overlap", "fsdp", "zero1", "zero2", "zero3"]
        | None
    ) = key(None, "default ddp if dp * cp > 1, else none", wants="replicated")
    bucket_cap: float | None = bucketed(
        None,
        "DDP's bucket; default 25 MiB after a first of 1 MiB",
        unit="bytes",
        above=0,
    )
    gradient_as_bucket_view: bool = bucketed(
        True, "DDP gradients are views of the buckets"
    )
    fsdp_shards: int | None = key(
        None,
        "ranks that share one copy of the parameters (fewer: HSDP); default dp * cp",
        low=1,
        wants=SHARDED,
    )
    reshard_after_forward: bool | None = key(
        None,
        "FSDP frees parameters after forward; default: unless pp > 1 or zero2",
        wants="resharded",
    )
    root_groups: Literal["one", "split"] = sharded(
        "one", "FSDP2 outside blocks: one group, or the embedding apart (torchtitan)"
    )
    reshard_root: bool = sharded(
        False, "FSDP2 frees the root's parameters after forward"
    )
    offload: Literal["none", "parameters", "optimizer"] = key(
        "none",
        "kept in host memory: parameters (FSDP2, with the optimizer), or the optimizer (DeepSpeed, Megatron)",
    )
    offload_fraction: float = key(
        1.0,
        "share of the optimizer's state kept there (megatron)",
        low=0,
        wants="parallel.offload = optimizer",
    )
    offload_pinned: bool = offloaded(True, "through pinned memory")
    offload_threads: int | None = offloaded(
        None,
        "CPU threads of a rank's update; default 1 with several ranks a host, else 16",
        low=1,
    )
    sequence_parallel: bool = key(
        False,
        "tensor parallelism also splits norms, by tokens",
        wants="parallel.tp > 1",
    )
    uneven_stages: bool = staged(
        False, "first stages take one layer more where layers do not divide"
    )
    schedule: str = staged(
        "1f1b", "pipeline schedule; `prestep list schedules`", names="schedules"
    )
    microbatches: int | None = key(None, "the same as training.microbatches", low=1)
    order: str | None = key(
        None,
        'axes, innermost first; default "tp-cp-ep-pp-dp", megatron: "tp-cp-ep-dp-pp"',
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
