"""How a job's batch is cut into microbatches, and its ranks into axes."""

from __future__ import annotations

from prestep.sim.extras import lazily
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job import JobSpec

with lazily():
    from prestep.workloads import schedules


def microbatches_of(job: JobSpec) -> int:
    """Microbatches that each rank runs in a step, over all runs of the pipeline schedule.

    From training.microbatches and training.grad_accumulation, else global_batch / (micro_batch * dp), else 1.
    """
    explicit = stated_microbatches(job)
    if explicit is not None:
        return explicit
    training = job.training
    if training.global_batch is None:
        return 1
    return max(1, training.global_batch // (training.micro_batch * job.parallel.dp))


def grad_accumulation_of(job: JobSpec) -> int:
    """Accumulated backward passes per step; with a pipeline, runs of the schedule per step (1 if not said).

    Each run has `microbatches_of(job) // grad_accumulation_of(job)` microbatches: one without a pipeline.
    """
    if job.parallel.pp == 1:
        return microbatches_of(job)
    return job.training.grad_accumulation or 1


def axis_order(job: JobSpec) -> tuple[str, ...]:
    """Parallel axes from the one on neighbouring ranks outwards; axes that were not named follow in the default order.

    PyTorch's meshes are written (dp, pp, tp), the last one innermost; Megatron-LM's default is tp-cp-ep-dp-pp.
    """
    stated = job.parallel.order
    first = tuple(stated.lower().split("-")) if stated else ()
    default = framework_of(job).order
    return first + tuple(axis for axis in default if axis not in first)


def shards_parameters(job: JobSpec) -> bool:
    """Whether each replica keeps a part of the parameters: all of FSDP's ways, ZeRO 3."""
    return job.parallel.data_parallel in framework_of(job).sharded


def splits_backward(job: JobSpec) -> bool:
    """Whether the schedule runs backward passes in halves; one that cannot run is refused elsewhere."""
    p = job.parallel
    per_run = microbatches_of(job) // grad_accumulation_of(job)
    chunks = p.vpp if p.vpp > 1 else None
    few = framework_of(job).few_microbatches
    if schedules.check(p.schedule, p.pp, per_run, chunks, few=few):
        return False
    return schedules.splits_backward(p.schedule, p.pp, per_run, chunks)


def stated_microbatches(job: JobSpec) -> int | None:
    """Microbatches per step as the job says them outright, or None."""
    training, parallel = job.training, job.parallel
    per_run = training.microbatches or parallel.microbatches
    if parallel.pp == 1:
        return training.grad_accumulation or per_run
    return None if per_run is None else per_run * (training.grad_accumulation or 1)
