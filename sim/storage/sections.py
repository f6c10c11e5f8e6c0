"""The sections [checkpoint] and [dataload] of a scenario: saving the model, and reading the training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key


@dataclass(frozen=True)
class Checkpoint:
    """Saving the model during training."""

    every: int | None = key(None, "steps between checkpoints", low=1)
    mode: Literal["rank0", "sharded", "async", "peer"] | None = key(
        None,
        "rank 0 writes (default), every rank, behind training, or into a peer's memory",
    )
    storage: str | None = key(
        None, '"nvme" (default), another of `prestep list storage`, or a file'
    )
    content: Literal["all", "model"] = key(
        "all", "parameters and optimizer state, or parameters alone"
    )
    writers: Literal["balanced", "replica0"] = key(
        "balanced", "replicas that write what they share"
    )
    writer: Literal["thread", "process"] = key(
        "thread", "async: a thread of training, or a process"
    )
    pinned: bool = key(False, "staged in pinned memory")
    gpudirect: bool = key(False, "from GPU to storage directly")
    capacity: float | None = key(
        None, "room for a checkpoint; default: the storage's", unit="bytes", above=0
    )
    restore_gpus: int | None = key(None, "GPUs that load it; default: as many", low=1)


@dataclass(frozen=True)
class Dataload:
    """Reading the training data."""

    batch_time: float | None = key(
        None, "a worker's time for a microbatch", unit="duration"
    )
    workers: int = key(0, "processes of a rank; 0: training itself", low=0)
    prefetch: int = key(
        2, "batches that each worker makes ahead (prefetch_factor)", low=1
    )
    decode: float | None = key(
        None, "or: a worker's CPU time for a sample", unit="duration"
    )
    sample: float | None = key(None, "bytes of a sample", unit="bytes", above=0)
    storage: str | None = key(
        None, '"nvme" (default), another of `prestep list storage`, or a file'
    )
    cpus: int | None = key(None, "a host's cores for workers; default: enough", low=1)
    copy: Literal["pageable", "pinned", "beside"] | None = key(
        None,
        "to the GPU: by the host, on the step's stream, or its own; default: in batch_time",
    )
