"""Reading data: workers that make microbatches, a queue of prefetched ones, and the copy to the GPU.

A worker takes `batch_time` for a microbatch, or for every sample the time to read and to decode it:

    batch = samples * (decode * crowd + latency + sample / thread)      one worker
    read  = max(batches * batch / workers, bytes of the host / min(throughput of its storage, way to its memory))

`crowd` is how many workers share a core of the host, at least 1. The way is that of all ranks of a host at once: its
disks, PCIe or network, and its part of what all hosts share. Without workers the training process makes each batch
itself, and nothing overlaps. With them a step takes as long as the slower of the two: the queue evens out what varies,
never the rate. Copies from pinned memory come before the step's kernels on their stream; with a stream of their own
(`copy = "beside"`) they run beside those of the step before. A copy from pageable memory holds the host until the GPU
has done all before it: every step begins level, and what the host reads itself overlaps what it had launched ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prestep.sim.errors import Mistake

if TYPE_CHECKING:
    from prestep.sim.planning.job import Batch
    from prestep.sim.storage.sections import Dataload
    from prestep.sim.storage.systems import System
    from prestep.workloads.models.model import ModelSpec

TOKEN = 8.0  # bytes: PyTorch indexes with 64-bit integers; tokens and labels
PIXEL = 4.0  # bytes: 32-bit floats, three colours


@dataclass(frozen=True)
class Place:
    """What a rank and its host give its readers.

    Attributes
    ----------
    ranks : int
        On the host.
    pageable, pinned : float
        Bytes/s of copies to the GPU.
    launched, done : float
        Of a step that begins level: when its host has launched all of it, and when its GPU has done it, s.
    system : System or None
        Where samples are read from.
    delivery : float
        Bytes/s that disks, PCIe and network bring from there to the host's memory, all ranks together.
    """

    ranks: int
    pageable: float
    pinned: float
    launched: float
    done: float
    system: System | None = None
    delivery: float = math.inf


def mistakes_of(d: Dataload, where: str) -> Iterator[Mistake]:
    """What is wrong with [dataload] before anything is simulated."""
    if d.batch_time is None and d.decode is None:
        expected = 'a duration such as "20 ms"'
        hint = "time of one worker to make one microbatch; or decode, for one sample"
        yield Mistake(where, "dataload.batch_time", "nothing", expected, hint)
    for name in ("decode", "sample") if d.batch_time is not None else ():
        if getattr(d, name) is not None:
            expected = "one of them: batch_time has reading and decoding in it"
            yield Mistake(where, f"dataload.{name}", "batch_time too", expected)
    if d.storage is not None and d.sample is None:
        expected = "sample, the bytes of one sample, beside it"
        yield Mistake(where, "dataload.storage", d.storage, expected)


def sample_bytes(model: ModelSpec, seq_len: int) -> float:
    """Bytes of a sample that are copied to the GPU: tokens with labels, or an image with its label."""
    if model.kind == "resnet":
        return PIXEL * 3 * model.image_size**2 + TOKEN
    if model.kind == "transformer":
        return 2 * TOKEN * seq_len
    return PIXEL * (model.sizes[0] + model.sizes[-1]) if model.sizes else 0.0


def table_of(
    asked: Dataload, batch: Batch, step: float, model: ModelSpec, place: Place
) -> dict[str, Any]:
    """How long a step takes with its data, in s.

    `read_time`: what the readers need for the microbatches of one step; `copy_time`: what copying them to the GPU
    takes; `exposed`: what of both the step waits for. The step takes as long as the slower of `gpu_time`, the GPU with
    what nothing overlaps, and `readers_time`, the workers (0: there are none).
    """
    batches = batch.microbatches
    one, storage = _batch_time(asked, batch.samples, place)
    read = max(batches * one / max(1, asked.workers), batches * storage)
    copy = _copy_time(asked, batch, model, place)
    gpu, readers = _sides(asked, step, read, copy, place)
    total = max(gpu, readers)
    exposed = total - step
    return {
        "batches": batches,
        "batch_time": one,
        "read_time": read,
        "copy_time": copy,
        "prefetched": asked.workers * asked.prefetch,
        "exposed": exposed,
        "share": exposed / total,
        "step_time_with": total,
        "gpu_time": gpu,
        "readers_time": readers,
        "input_bound": readers > gpu,
        "bound_by": "storage" if batches * storage >= read > 0 else "workers",
        "first_batch": one,
    }


def _copy_time(asked: Dataload, batch: Batch, model: ModelSpec, place: Place) -> float:
    """Seconds of copying the samples of a step to the GPU."""
    samples = batch.microbatches * batch.samples
    rate = _copy_rate(asked, place)
    size = sample_bytes(model, batch.tokens)
    return samples * size / rate if rate else 0.0


def _copy_rate(asked: Dataload, place: Place) -> float:
    """Bytes/s of copies to the GPU; 0 if there are none."""
    if asked.copy == "pageable":
        return place.pageable
    return place.pinned if asked.copy in ("pinned", "beside") else 0.0


def _sides(
    asked: Dataload, step: float, read: float, copy: float, place: Place
) -> tuple[float, float]:
    """Seconds that a step takes the GPU, and its workers; without workers the GPU waits for what is read."""
    alone = asked.workers == 0
    if asked.copy == "pageable":
        run = max(step, place.done)
        return (
            (max(run, place.launched + read) + copy, 0.0)
            if alone
            else (run + copy, read + copy)
        )
    run = max(step, copy) if asked.copy == "beside" else step + copy
    return (run + read, 0.0) if alone else (run, read)


def _batch_time(asked: Dataload, samples: int, place: Place) -> tuple[float, float]:
    """Seconds of one worker for a microbatch, and of the host's storage for it."""
    if asked.batch_time is not None:
        return asked.batch_time, 0.0
    workers = max(1, asked.workers)
    crowd = max(1.0, place.ranks * workers / asked.cpus) if asked.cpus else 1.0
    each, storage = (asked.decode or 0.0) * crowd, 0.0
    if asked.sample is not None and (system := place.system) is not None:
        each += system.latency + asked.sample / system.thread
        threads = place.ranks * workers
        gives = system.throughput(asked.sample, threads, "read", random=True)
        rate = min(gives, place.delivery)
        storage = samples * place.ranks * asked.sample / rate
    return samples * each, storage
