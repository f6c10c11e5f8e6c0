"""The section [training] of a scenario: how a step is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key
from prestep.workloads.job import limits


@dataclass(frozen=True)
class Training:
    """How a step is made."""

    seq_len: int = key(2048, "tokens per sample", low=1, most=limits.TOKENS)
    micro_batch: int = key(
        1, "samples per rank and microbatch", low=1, most=limits.SAMPLES
    )
    packed: int | None = key(
        None,
        "tokens of a document, where several are packed into a sample and attention sees its own alone (their mean)",
        low=1,
        most=limits.TOKENS,
    )
    global_batch: int | None = key(
        None, "samples per step over all ranks", low=1, most=limits.BATCH
    )
    grad_accumulation: int | None = key(
        None, "backward passes per optimizer step", low=1
    )
    microbatches: int | None = key(
        None, "microbatches per rank and run of the pipeline schedule", low=1
    )
    precision: str = key(
        "bf16", "number format of weights and activations", names="precisions"
    )
    recompute: Literal["none", "selective", "products", "alternate", "full"] = key(
        "none",
        "activation checkpointing of every block; products: all but attention and every other product; alternate: "
        "every other block whole (PyTorch)",
    )
    optimizer: str = key(
        "adamw",
        "optimizer (fused); muon: of hidden matrices, AdamW for the rest",
        names="optimizers",
    )
    warmup: int = key(
        4,
        "steps before the reported one; decides whether DDP's first buckets still count",
        low=1,
        wants="bucketed",
    )
    set_to_none: bool = key(
        True,
        "zero_grad frees gradients instead of filling them with zeros",
        of="pytorch",
    )
    framework: str = key(
        "pytorch-eager",
        "decides the kernels and what launching them costs (deepspeed, automodel: Megatron's layers under it, or "
        "under PyTorch's FSDP2)",
        names="frameworks",
    )
