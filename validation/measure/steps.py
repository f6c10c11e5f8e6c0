"""Training steps by configuration (`case`): one GPU, DDP, FSDP2, tensor parallelism by DTensor, pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.job import (
    Case,
    Job,
    Step,
    adamw,
    job_of,
    making,
    step_of,
)


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
    with making(session):
        job = job_of(case, session)
    if case.get("compile"):
        for block in job.net.layers:
            block.compile()
    if case["mode"] not in MODES:
        raise ValueError(
            f"mode {case['mode']!r}: expected {', '.join(MODES)}, pp or ppdp"
        )
    # Counted before a mode cuts the parameters up.
    parameters = sum(p.numel() for p in job.net.parameters())
    step = MODES[case["mode"]](job)
    step.info["params"] = parameters
    return step


def _single(job: Job) -> Step:
    """Every rank by itself."""
    return step_of(job, job.net, adamw(job.net.parameters(), job.session))


def _ddp(job: Job) -> Step:
    """DistributedDataParallel; experts that are spread over the ranks keep their own gradients."""
    case, session, parallel = job.case, job.session, nn.parallel.DistributedDataParallel
    if case.get("ep", 1) > 1:
        apart = [name for name, _ in job.net.named_parameters() if ".ex." in name]
        parallel._set_params_and_buffers_to_ignore_for_model(job.net, apart)
    wrapped = parallel(
        job.net,
        device_ids=[session.local_rank] if session.cuda else None,
        bucket_cap_mb=case.get("bucket_mb", 25),
        gradient_as_bucket_view=case.get("gabv", True),
        static_graph=case.get("static", False),
    )
    optimizer = adamw(wrapped.parameters(), session)
    step = step_of(job, wrapped, optimizer)
    step.ddp = wrapped
    return step


def _plain_ddp(job: Job) -> Step:
    """Data parallelism that reduces each gradient after the whole backward pass."""
    parameters = list(job.net.parameters())

    def sync() -> None:
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad.div_(job.session.world)

    return step_of(job, job.net, adamw(parameters, job.session), sync)


def _sharded(job: Job) -> Step:
    """FSDP2 and tensor parallelism; a PyTorch that lacks them can still run the other modes."""
    from prestep.validation.measure.sharded import sharded

    return sharded(job)


def _pipeline(case: Case, session: GroupSession) -> Step:
    """Pipeline stages; a PyTorch that lacks them can still run the other modes."""
    from prestep.validation.measure.pipeline import pipeline

    return pipeline(case, session)


MODES: Mapping[str, Callable[[Job], Step]] = {
    "single": _single,
    "ddp": _ddp,
    "ddp_nooverlap": _plain_ddp,
    "fsdp": _sharded,
    "fsdptp": _sharded,
    "tp": _sharded,
}
