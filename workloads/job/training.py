"""The section [training] of a scenario: how a step is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key
from prestep.workloads.job import limits


@dataclass(frozen=True)
class Training:
    """How a step is made."""

    seq_len: int = key(2048, "tokens per sample", limits.TOKENS)
    micro_batch: int = key(1, "samples per rank and microbatch", limits.SAMPLES)
    packed: int | None = key(
        None, "mean length of the documents packed into a sample", limits.TOKENS
    )
    global_batch: int | None = key(
        None, "samples per step over all ranks", limits.BATCH
    )
    grad_accumulation: int | None = key(
        None, "backward passes per optimizer step", low=1
    )
    microbatches: int | None = key(None, "microbatches of a rank in a pipeline", low=1)
    precision: str = key(
        "bf16", "number format of weights and activations", names="precisions"
    )
    recompute: Literal["none", "selective", "products", "alternate", "full"] = key(
        "none",
        "activation checkpointing; products: keeps attention and every other product; alternate: every other block",
    )
    optimizer: str = key(
        "adamw", "fused; muon: AdamW for all but hidden matrices", names="optimizers"
    )
    deterministic: bool = key(
        False, "sums have one order (torch.use_deterministic_algorithms)"
    )
    warmup: int = key(4, "steps before the reported one", low=1, wants="bucketed")
    set_to_none: bool = key(True, "zero_grad frees gradients", of="pytorch")
    framework: str = key(
        "pytorch-eager", "whose kernels and launch costs", names="frameworks"
    )
