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
        "torch.save by rank 0 (the default); every rank its shard; the same behind training; into a peer's memory",
    )
    storage: str | None = key(
        None,
        'where to: "nvme" (the default), "weka", ...; `prestep list storage`, or a file',
    )
    content: Literal["all", "model"] = key(
        "all", "parameters and optimizer state, or parameters alone"
    )
    writers: Literal["balanced", "replica0"] = key(
        "balanced",
        "sharded, async: who writes what data-parallel replicas share: all, or the first of them",
    )
    writer: Literal["thread", "process"] = key(
        "thread",
        "async: a thread of the training process, which holds up its launches, or a process of its own",
    )
    pinned: bool = key(
        False, "staged into pinned memory that is kept, not into new pages"
    )
    gpudirect: bool = key(
        False, "from the GPU to the storage without a bounce through the host's memory"
    )
    capacity: float | None = key(
        None, "room for a checkpoint; default: the storage's", unit="bytes", above=0
    )
    restore_gpus: int | None = key(
        None, "GPUs of the run that loads it; default: as many as wrote it", low=1
    )


@dataclass(frozen=True)
class Dataload:
    """Reading the training data."""

    batch_time: float | None = key(
        None, "time of one worker to make one microbatch", unit="duration"
    )
    workers: int = key(
        0, "worker processes per rank; 0: the training process itself", low=0
    )
    prefetch: int = key(
        2, "batches that each worker makes ahead (prefetch_factor)", low=1
    )
    decode: float | None = key(
        None,
        "instead of batch_time: CPU time of one worker for a sample",
        unit="duration",
    )
    sample: float | None = key(
        None,
        "bytes of a sample on the storage, read in random order",
        unit="bytes",
        above=0,
    )
    storage: str | None = key(
        None,
        'where samples are read from; default "nvme"; `prestep list storage`, or a file',
    )
    cpus: int | None = key(
        None, "cores of a host for the workers of all its ranks; default: enough", low=1
    )
    copy: Literal["pageable", "pinned", "beside"] | None = key(
        None,
        "to the GPU: held up by the host, on the step's stream, on a stream of its own; default: in batch_time",
    )
