"""The section [dataload] of a scenario: reading the training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key


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
