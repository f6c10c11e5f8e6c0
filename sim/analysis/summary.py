"""What was run, in short: the cluster, the model, its layout."""

from __future__ import annotations

from prestep.sim.analysis import formats
from prestep.sim.planning.planned import Planned
from prestep.workloads.job.parallel import Parallel

#: The kind of model that a recorded program is.
CAPTURED = "captured"
#: What a throughput counts, by kind of model.
SAMPLES = {"transformer": "tokens", "resnet": "images", CAPTURED: "steps"}


def summary_of(planned: Planned) -> dict[str, object]:
    """What was run, in the order to print."""
    training = planned.scenario.training
    world = planned.lowered.layout.world
    captured = planned.model.kind == CAPTURED  # its program decides, and does not say
    return {
        "name": planned.scenario.where,
        "cluster": planned.fabric.name,
        "gpu": planned.gpu.name,
        "gpus": world,
        "model": planned.model.name,
        "parameters": planned.lowered.parameters,
        "layout": _ranks(world) if captured else _layout(planned.scenario.parallel),
        "data_parallel": planned.scenario.parallel.data_parallel,
        "framework": training.framework,
        "precision": "" if captured else training.precision,
        "peak": "" if captured else formats.words(formats.formats_of(planned)),
        "sample": SAMPLES.get(planned.model.kind, "samples"),
    }


def _ranks(world: int) -> str:
    return "single GPU" if world == 1 else f"{world} ranks"


def _layout(parallel: Parallel) -> str:
    """Sizes of the axes over more than one rank: "dp 8 x tp 4"."""
    sizes = {axis: getattr(parallel, axis) for axis in ("dp", "pp", "tp", "cp", "ep")}
    axes = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
    return " x ".join(axes) or "single GPU"
