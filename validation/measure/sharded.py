"""Training steps whose parameters are cut up: FSDP2, tensor parallelism by DTensor, or both."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from prestep.validation.measure.job import Job, Step, adamw, step_of

COLUMNWISE = ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3")
ROWWISE = ("attn.wo", "mlp.w2")


def sharded(job: Job) -> Step:
    """FSDP2, tensor parallelism, or both: one inside the other."""
    case, session, net = job.case, job.session, job.net
    world = session.world
    tp = int(case.get("tp", {"fsdp": 1, "tp": world}.get(case["mode"], 2)))
    mesh = init_device_mesh(
        session.device.type, (world // tp, tp), mesh_dim_names=("dp", "tp")
    )
    if tp > 1:
        _split(net.layers, mesh["tp"])
    if world > tp:
        reshard = case.get("reshard", True)
        for part in (*net.layers, net):
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=reshard)
    if tp == 1:
        return step_of(job, net, adamw(net.parameters(), session))
    # Parameters of tensor parallelism alone and all others do not mix in one fused optimizer.
    groups = [
        [p for p in net.parameters() if _is_only_split(p) == which]
        for which in (True, False)
    ]
    optimizer = _Both([adamw(group, session) for group in groups if group])
    return step_of(job, net, optimizer)


def _split(blocks: Any, mesh: Any) -> None:
    """Tensor parallelism of each block: by columns into it, by rows out of it."""
    plan = {
        **{name: ColwiseParallel() for name in COLUMNWISE},
        **{name: RowwiseParallel() for name in ROWWISE},
    }
    for block in blocks:
        parallelize_module(block, mesh, plan)


def _is_only_split(parameter: Any) -> bool:
    """Whether tensor parallelism alone, and not FSDP, has a parameter."""
    if not isinstance(parameter, DTensor):
        return False
    return parameter.device_mesh.mesh_dim_names == ("tp",)


class _Both:
    """Several optimizers as one: DTensors and plain tensors do not mix in a fused one."""

    def __init__(self, optimizers: list[Any]) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self, **options: Any) -> None:
        for one in self.optimizers:
            one.zero_grad(**options)
