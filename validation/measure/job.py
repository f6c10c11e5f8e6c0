"""A rank's training step: what it trains, and forward, backward and update as they are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from prestep.validation.formats.usual import SIZES
from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.models import Llama, ThreeLinear, cross_entropy

Case = Mapping[str, Any]


@dataclass
class Step:
    """A step to call, and what a row tells of it."""

    call: Callable[[], Any]
    info: dict[str, Any] = field(default_factory=dict)
    ddp: Any = None


@dataclass(frozen=True)
class Job:
    """What a rank trains: a model, its input and target, and its loss."""

    case: Case
    session: GroupSession
    net: Any
    x: Any
    y: Any
    loss: Callable[..., Any]


@contextmanager
def making(session: GroupSession) -> Iterator[None]:
    """New tensors are on this process's device, in bf16."""
    torch.set_default_dtype(torch.bfloat16 if session.cuda else torch.float32)
    try:
        with torch.device(session.device):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def job_of(case: Case, session: GroupSession) -> Job:
    """The model of a case with random input and targets, by the model's name."""
    name, batch, seq = str(case["model"]), int(case["mbs"]), int(case.get("seq", 2048))
    if name == "resnet50":
        return Job(case, session, *_resnet(batch))
    if name.startswith("seedmlp_"):
        size = int(name.split("_")[1])
        net, x = ThreeLinear(size), torch.randn(batch, size)
        return Job(case, session, net, x, torch.randn(batch, 1), F.mse_loss)
    if name not in SIZES:
        raise ValueError(
            f"model {name!r}: expected one of {', '.join(SIZES)}, resnet50, seedmlp_<size>"
        )
    x, y = (torch.randint(0, SIZES[name][5], (batch, seq)) for _ in range(2))
    net = Llama(name, recompute=bool(case.get("ac")), moe=_experts(case))
    return Job(case, session, net, x, y, cross_entropy)


def _resnet(batch: int) -> tuple[Any, Any, Any, Callable[..., Any]]:
    """ResNet-50 with images and classes."""
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    net = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    image = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    return net, image, torch.randint(0, 1000, (batch,)), F.cross_entropy


def _experts(case: Case) -> tuple[Any, int] | None:
    """The group over which experts are spread, and how many ranks it has; None of a dense model."""
    if not str(case["model"]).startswith("moe"):
        return None
    ranks = int(case.get("ep", 1))
    return (dist.group.WORLD if ranks > 1 else None), ranks


def adamw(parameters: Any, session: GroupSession) -> Any:
    """AdamW, fused where there is a GPU."""
    return torch.optim.AdamW(parameters, lr=1e-4, fused=session.cuda)


def step_of(
    job: Job, net: Any, optimizer: Any, sync: Callable[[], None] | None = None
) -> Step:
    """Forward, backward and update; gradients of all microbatches but the last stay on their rank."""
    case, x, y, loss = job.case, job.x, job.y, job.loss
    count, to_none = int(case.get("ga", 1)), bool(case.get("set_to_none", True))

    def step() -> None:
        for i in range(count):
            last = i == count - 1
            if not last and hasattr(net, "no_sync"):
                with net.no_sync():
                    loss(net(x), y).backward()
            else:
                if hasattr(net, "set_requires_gradient_sync"):
                    net.set_requires_gradient_sync(last)
                loss(net(x), y).backward()
        if sync:
            sync()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    return Step(step)
