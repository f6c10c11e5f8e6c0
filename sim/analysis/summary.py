"""What was run, in short: the cluster, the model, its layout, and the number formats of its products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import itemgetter

import numpy as np

from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain, Program
from prestep.sim.planning.job import Degrees, Job
from prestep.sim.planning.planned import Planned
from prestep.workloads.models.model import PROGRAM
from prestep.workloads.precision import precision

PRODUCTS = ("mm", "attention")
#: What a throughput counts, by kind of model.
SAMPLES = {"transformer": "tokens", "resnet": "images"}


def summary_of(planned: Planned) -> dict[str, object]:
    """What was run, in the order to print."""
    job, world = planned.job, planned.lowered.layout.world
    _, reads = planned.lowered.reads
    decided = planned.model.kind == PROGRAM  # it has these, and does not say them
    return {
        "name": job.where,
        "cluster": planned.fabric.name,
        "gpu": planned.gpu.name,
        "gpus": world,
        "hosts": len({planned.fabric.host_of(gpu) for gpu in planned.machine.gpus}),
        "model": planned.model.name,
        "parameters": planned.lowered.parameters,
        "layout": _ranks(world) if decided else _layout(job.degrees),
        "data_parallel": job.data_parallel,
        **({} if decided else _batch(job)),
        "framework": job.framework,
        "nccl": planned.machine.nccl.version,
        "precision": "" if decided else job.precision,
        "peak": "" if decided else _format_words(formats_of(planned)),
        "sample": reads if decided else SAMPLES.get(planned.model.kind, "samples"),
    }


def _batch(job: Job) -> dict[str, object]:
    """Samples of a step and of a microbatch, and the tokens of a sample where there are any."""
    batch = job.batch
    return {
        "seq_len": batch.tokens if batch.tokens > 1 else None,
        "global_batch": batch.samples * batch.microbatches * job.degrees.dp,
        "micro_batch": batch.samples,
        "microbatches": batch.microbatches,
    }


def _ranks(world: int) -> str:
    return "single GPU" if world == 1 else f"{world} ranks"


def _layout(degrees: Degrees) -> str:
    """Sizes of the axes over more than one rank: "dp 8 x tp 4"."""
    axes = [f"{axis} {size}" for axis, size in degrees._asdict().items() if size > 1]
    return " x ".join(axes) or "single GPU"


def formats_of(planned: Planned) -> dict[str, float]:
    """Shares of the flops of a step's products by number format, the largest first.

    Products of a step that quantizes none are in its own format.
    """
    name = planned.job.precision
    if not precision(name).quantized:
        return {name: 1.0}
    flops: dict[str, float] = defaultdict(float)
    for program in planned.graph.programs:
        ranks = len(planned.graph.represents[program.rank])
        for kernel, times in _kernels(planned.graph.kernels, program):
            if any(word in kernel.kind for word in PRODUCTS):
                flops[kernel.dtype] += ranks * times * work(kernel)[0]
    whole = sum(flops.values())
    if whole <= 0:
        return {name: 1.0}
    return {
        dtype: share / whole
        for dtype, share in sorted(flops.items(), key=itemgetter(1), reverse=True)
        if share > 0
    }


def _kernels(
    kernels: tuple[Kernel | Chain, ...], program: Program
) -> Iterator[tuple[Kernel, float]]:
    """Kernels of a program and how often each runs, those within chains too."""
    played = program.payload[program.kind == KERNEL]
    for index, count in zip(*np.unique(played, return_counts=True), strict=True):
        kernel = kernels[int(index)]
        if not isinstance(kernel, Chain):
            yield kernel, float(count)
        elif not kernel.tail:
            for inner, times in _kernels(
                kernel.graph.kernels, kernel.graph.programs[0]
            ):
                yield inner, times * float(count) * kernel.times


def peak_of(planned: Planned, formats: Mapping[str, float]) -> float:
    """Flop/s of a GPU that runs its products in these shares of formats at their peaks; nan where one is not known."""
    peaks = planned.gpu.peak
    seconds = sum(
        share / peaks.get(name, float("nan")) for name, share in formats.items()
    )
    return 1.0 / seconds


def _format_words(formats: Mapping[str, float]) -> str:
    """The formats with their shares: `fp8 92 %, bf16 8 %`; one alone without."""
    if len(formats) == 1:
        return next(iter(formats))
    return ", ".join(f"{name} {share:.0%}" for name, share in formats.items())
