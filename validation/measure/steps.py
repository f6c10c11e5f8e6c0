"""Training steps by configuration (`case`): one GPU, DDP, FSDP2, tensor parallelism by DTensor, pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from validation.measure.group import GroupSession
from validation.measure.models import Llama, ThreeLinear, cross_entropy
from validation.measure.sizes import SIZES

Case = Mapping[str, Any]
PLAN = (
    ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3"),
    ("attn.wo", "mlp.w2"),
)  # by columns, by rows
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb": "ScheduleInterleavedZeroBubble",
}


@dataclass
class Step:
    """A step to call, and what is to be told of it."""

    call: Callable[[], Any]
    info: dict[str, Any] = field(default_factory=dict)
    ddp: Any = None


def build(case: Case, session: GroupSession) -> Step:
    """The step of a case on this rank.

    Raises
    ------
    ValueError
        If the case says something that is not built here.
    """
    torch.manual_seed(0)
    if case["mode"] in ("pp", "ppdp"):
        return _pipeline(case, session)
    with _making(session):
        net, x, y, loss = _model(case, session)
    if case.get("compile"):
        for block in net.layers:
            block.compile()
    info = {"params": sum(p.numel() for p in net.parameters())}
    mode = case["mode"]
    if mode == "single":
        return Step(
            _basic(case, net, _adamw(net.parameters(), session), x, y, loss), info
        )
    if mode == "ddp":
        return _ddp(case, session, net, x, y, loss, info)
    if mode == "ddp_nooverlap":
        return _plain_ddp(case, session, net, x, y, loss, info)
    if mode in ("fsdp", "fsdptp", "tp"):
        return _sharded(case, session, net, x, y, loss, info)
    raise ValueError(
        f"mode {mode!r}: expected single, ddp, ddp_nooverlap, fsdp, fsdptp, tp, pp or ppdp"
    )


@contextmanager
def _making(session: GroupSession) -> Iterator[None]:
    """New tensors are on this process's device, in bf16."""
    torch.set_default_dtype(torch.bfloat16 if session.cuda else torch.float32)
    try:
        with torch.device(session.device):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def _model(
    case: Case, session: GroupSession
) -> tuple[nn.Module, Any, Any, Callable[..., Any]]:
    name, batch, seq = str(case["model"]), int(case["mbs"]), int(case.get("seq", 2048))
    if name == "resnet50":
        import torchvision  # type: ignore[import-not-found, unused-ignore]

        net = torchvision.models.resnet50().to(memory_format=torch.channels_last)
        image = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
        return net, image, torch.randint(0, 1000, (batch,)), F.cross_entropy
    if name.startswith("seedmlp_"):
        size = int(name.split("_")[1])
        return (
            ThreeLinear(size),
            torch.randn(batch, size),
            torch.randn(batch, 1),
            F.mse_loss,
        )
    if name not in SIZES:
        raise ValueError(
            f"model {name!r}: expected one of {', '.join(SIZES)}, resnet50, seedmlp_<size>"
        )
    moe = (
        (dist.group.WORLD if case.get("ep", 1) > 1 else None, int(case.get("ep", 1)))
        if name[:3] == "moe"
        else None
    )
    x, y = (torch.randint(0, SIZES[name][5], (batch, seq)) for _ in range(2))
    return Llama(name, recompute=bool(case.get("ac")), moe=moe), x, y, cross_entropy


def _adamw(parameters: Any, session: GroupSession) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=session.cuda)


def _basic(
    case: Case,
    net: Any,
    optimizer: Any,
    x: Any,
    y: Any,
    loss: Callable[..., Any],
    sync: Callable[[], None] | None = None,
) -> Callable[[], None]:
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

    return step


def _ddp(
    case: Case,
    session: GroupSession,
    net: Any,
    x: Any,
    y: Any,
    loss: Any,
    info: dict[str, Any],
) -> Step:
    parallel = nn.parallel.DistributedDataParallel
    if case.get("ep", 1) > 1:
        apart = [name for name, _ in net.named_parameters() if ".ex." in name]
        parallel._set_params_and_buffers_to_ignore_for_model(net, apart)
    wrapped = parallel(
        net,
        device_ids=[session.local_rank] if session.cuda else None,
        bucket_cap_mb=case.get("bucket_mb", 25),
        gradient_as_bucket_view=case.get("gabv", True),
        static_graph=case.get("static", False),
    )
    return Step(
        _basic(case, wrapped, _adamw(wrapped.parameters(), session), x, y, loss),
        info,
        wrapped,
    )


def _plain_ddp(
    case: Case,
    session: GroupSession,
    net: Any,
    x: Any,
    y: Any,
    loss: Any,
    info: dict[str, Any],
) -> Step:
    parameters = list(net.parameters())

    def sync() -> None:
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad.div_(session.world)

    return Step(_basic(case, net, _adamw(parameters, session), x, y, loss, sync), info)


class _Both:
    """Several optimizers as one: DTensors and plain tensors do not mix in a fused one."""

    def __init__(self, optimizers: list[Any]) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self, **said: Any) -> None:
        for one in self.optimizers:
            one.zero_grad(**said)


def _sharded(
    case: Case,
    session: GroupSession,
    net: Any,
    x: Any,
    y: Any,
    loss: Any,
    info: dict[str, Any],
) -> Step:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    world, mode = session.world, case["mode"]
    tp = int(case.get("tp", {"fsdp": 1, "tp": world}.get(mode, 2)))
    mesh = init_device_mesh(
        session.device.type, (world // tp, tp), mesh_dim_names=("dp", "tp")
    )
    if tp > 1:
        plan = {
            **{name: ColwiseParallel() for name in PLAN[0]},
            **{name: RowwiseParallel() for name in PLAN[1]},
        }
        for block in net.layers:
            parallelize_module(block, mesh["tp"], plan)
    if world > tp:
        reshard = case.get("reshard", True)
        for part in (*net.layers, net):
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=reshard)
    if tp == 1:
        return Step(
            _basic(case, net, _adamw(net.parameters(), session), x, y, loss), info
        )

    def only_tp(p: Any) -> bool:
        return isinstance(p, DTensor) and p.device_mesh.mesh_dim_names == ("tp",)

    groups = [
        [p for p in net.parameters() if only_tp(p) == which] for which in (True, False)
    ]
    optimizer = _Both([_adamw(group, session) for group in groups if group])
    return Step(_basic(case, net, optimizer, x, y, loss), info)


def _pipeline(case: Case, session: GroupSession) -> Step:
    from torch.distributed import pipelining

    name, world, count = str(case["model"]), session.world, int(case["microbatches"])
    pp, chunks = int(case.get("pp", world)), int(case.get("vpp", 1))
    mesh = init_device_mesh(
        session.device.type, (world // pp, pp), mesh_dim_names=("dp", "pp")
    )
    group = mesh["pp"].get_group()
    rank, stages = dist.get_rank(group), pp * chunks
    cut = cuts(SIZES[name][1], stages)
    modules, parts = [], []
    for index in range(rank, stages, pp):
        module = _part(
            case, session, name, index, stages, range(cut[index], cut[index + 1])
        )
        modules.append(module)
        parts.append(
            pipelining.PipelineStage(module, index, stages, session.device, group=group)
        )
    kind = getattr(pipelining, SCHEDULES[case["schedule"]])
    several = chunks > 1 or case["schedule"] == "zb"
    schedule = kind(
        parts if several else parts[0], count, loss_fn=cross_entropy, scale_grads=False
    )
    shape = int(case["mbs"]) * count, int(case.get("seq", 2048))
    x, y = (
        torch.randint(0, SIZES[name][5], shape, device=session.device) for _ in range(2)
    )
    parameters = [p for module in modules for p in module.parameters()]
    optimizer, among = (
        _adamw(parameters, session),
        mesh["dp"].get_group() if world > pp else None,
    )

    def step() -> None:
        arguments = (x,) if rank == 0 else ()
        schedule.step(
            *arguments, **({"target": y, "losses": []} if rank == pp - 1 else {})
        )
        if among is not None:
            for p in parameters:
                dist.all_reduce(p.grad, group=among)
        optimizer.step()
        optimizer.zero_grad()

    layers = [b - a for a, b in pairwise(cut)]
    return Step(
        step, {"params": sum(p.numel() for p in parameters), "layers_per_stage": layers}
    )


def cuts(layers: int, stages: int) -> list[int]:
    """Where layers are cut: the first stages have one more where they do not divide."""
    base, extra = divmod(layers, stages)
    found = [0]
    for index in range(stages):
        found.append(found[-1] + base + (1 if index < extra else 0))
    return found


def _part(
    case: Case, session: GroupSession, name: str, index: int, stages: int, layers: range
) -> Llama:
    with _making(session):
        return Llama(
            name,
            index == 0,
            index == stages - 1,
            layers,
            recompute=bool(case.get("ac")),
        )
