"""What was run, in short: the cluster, the model, its layout."""

from __future__ import annotations

from prestep.sim.analysis import formats
from prestep.sim.planning.job import Degrees
from prestep.sim.planning.planned import Planned

#: The kind of model that a recorded program is.
CAPTURED = "captured"
#: What a throughput counts, by kind of model.
SAMPLES = {"transformer": "tokens", "resnet": "images", CAPTURED: "steps"}


def summary_of(planned: Planned) -> dict[str, object]:
    """What was run, in the order to print."""
    job, world = planned.job, planned.lowered.layout.world
    captured = planned.model.kind == CAPTURED  # its program decides, and does not say
    return {
        "name": job.where,
        "cluster": planned.fabric.name,
        "gpu": planned.gpu.name,
        "gpus": world,
        "model": planned.model.name,
        "parameters": planned.lowered.parameters,
        "layout": _ranks(world) if captured else _layout(job.degrees),
        "data_parallel": job.data_parallel,
        "framework": job.framework,
        "precision": "" if captured else job.precision,
        "peak": "" if captured else formats.words(formats.formats_of(planned)),
        "sample": SAMPLES.get(planned.model.kind, "samples"),
    }


def _ranks(world: int) -> str:
    return "single GPU" if world == 1 else f"{world} ranks"


def _layout(degrees: Degrees) -> str:
    """Sizes of the axes over more than one rank: "dp 8 x tp 4"."""
    axes = [f"{axis} {size}" for axis, size in degrees._asdict().items() if size > 1]
    return " x ".join(axes) or "single GPU"
