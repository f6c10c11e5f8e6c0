"""Training steps of pipeline stages, by PyTorch's own schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh

from prestep.validation.formats.usual import SIZES
from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.job import Case, Step, adamw, making
from prestep.validation.measure.models import Llama, cross_entropy

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb": "ScheduleInterleavedZeroBubble",
}


@dataclass(frozen=True)
class _Pipe:
    """The groups of a rank: the stages of its pipeline, and the ranks with the same stages."""

    stages: Any
    replicas: Any
    rank: int
    size: int

    @classmethod
    def of(cls, case: Case, session: GroupSession) -> _Pipe:
        """The pipeline of this rank; `replicas` is None where there is only one."""
        world, pp = session.world, int(case.get("pp", session.world))
        mesh = init_device_mesh(
            session.device.type, (world // pp, pp), mesh_dim_names=("dp", "pp")
        )
        stages = mesh["pp"].get_group()
        replicas = mesh["dp"].get_group() if world > pp else None
        return cls(stages, replicas, dist.get_rank(stages), pp)


def pipeline(case: Case, session: GroupSession) -> Step:
    """The step of this rank's stages."""
    pipe = _Pipe.of(case, session)
    count = pipe.size * int(case.get("vpp", 1))
    cut = cuts(SIZES[str(case["model"])][1], count)
    indices = range(pipe.rank, count, pipe.size)
    modules = [_part(case, session, index, cut) for index in indices]
    schedule = _schedule(case, session, pipe, modules, count)
    x, y = _batch(case, session)
    parameters = [p for module in modules for p in module.parameters()]
    step = _step(pipe, schedule, x, y, parameters, adamw(parameters, session))
    layers = [b - a for a, b in pairwise(cut)]
    size = sum(p.numel() for p in parameters)
    return Step(step, {"params": size, "layers_per_stage": layers})


def cuts(layers: int, stages: int) -> list[int]:
    """Where layers are cut: the first stages have one more where they do not divide."""
    base, extra = divmod(layers, stages)
    bounds = [0]
    for index in range(stages):
        bounds.append(bounds[-1] + base + (1 if index < extra else 0))
    return bounds


def _part(case: Case, session: GroupSession, index: int, cut: Sequence[int]) -> Llama:
    """The layers of one stage."""
    is_last = index == len(cut) - 2
    layers, recompute = range(cut[index], cut[index + 1]), bool(case.get("ac"))
    with making(session):
        return Llama(
            str(case["model"]), index == 0, is_last, layers, recompute=recompute
        )


def _schedule(
    case: Case, session: GroupSession, pipe: _Pipe, modules: Sequence[Llama], count: int
) -> Any:
    """PyTorch's schedule of this rank's stages; some kinds take a list even of one stage."""
    stages = [
        pipelining.PipelineStage(
            module, index, count, session.device, group=pipe.stages
        )
        for index, module in zip(
            range(pipe.rank, count, pipe.size), modules, strict=True
        )
    ]
    takes_a_list = int(case.get("vpp", 1)) > 1 or case["schedule"] == "zb"
    kind = getattr(pipelining, SCHEDULES[case["schedule"]])
    return kind(
        stages if takes_a_list else stages[0],
        int(case["microbatches"]),
        loss_fn=cross_entropy,
        scale_grads=False,
    )


def _batch(case: Case, session: GroupSession) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens and targets of all microbatches."""
    vocabulary = SIZES[str(case["model"])][5]
    shape = int(case["mbs"]) * int(case["microbatches"]), int(case.get("seq", 2048))
    x, y = (
        torch.randint(0, vocabulary, shape, device=session.device) for _ in range(2)
    )
    return x, y


def _step(
    pipe: _Pipe,
    schedule: Any,
    x: Any,
    y: Any,
    parameters: Sequence[Any],
    optimizer: Any,
) -> Callable[[], None]:
    """All microbatches, the reduction over replicas, and the update."""
    arguments = (x,) if pipe.rank == 0 else ()
    is_last = pipe.rank == pipe.size - 1

    def step() -> None:
        outputs = {"target": y, "losses": []} if is_last else {}
        schedule.step(*arguments, **outputs)
        if pipe.replicas is not None:
            for p in parameters:
                dist.all_reduce(p.grad, group=pipe.replicas)
        optimizer.step()
        optimizer.zero_grad()

    return step
