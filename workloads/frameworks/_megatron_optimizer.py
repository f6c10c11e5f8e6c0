"""What Megatron's optimizers cannot do: parts of parameters and gradients, types of states, the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import rule
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.optimizer import optimizer

FSDP = ("fsdp", "zero3")


@rule("parallel parallel.offload parallel.data_parallel training.optimizer")
def offloaded(s: JobSpec) -> Iterator[Mistake]:
    """The optimizer in the host's memory: of ranks that update a part of the parameters by Adam."""
    p = s.parallel
    if p.offload == "none":
        return
    if p.offload != "optimizer":
        hint = "FSDP2's CPUOffloadPolicy keeps parameters there"
        yield s.mistake("parallel.offload", '"optimizer" or "none"', hint)
    of_megatron = s.training.framework == "megatron"
    ways = ("zero1",) if of_megatron else ("zero1", "zero2", "zero3")
    if p.data_parallel not in ways:
        hint = "Megatron's hybrid optimizer is a distributed one, ZeRO-Offload is of ZeRO's partitions"
        expected = f"{' or '.join(ways)} with parallel.offload"
        yield s.mistake("parallel.data_parallel", expected, hint)
    if optimizer(s.training.optimizer).update != "adam":
        hint = "its update by the CPU is not simulated"
        expected = "an optimizer of Adam's kind with parallel.offload"
        yield s.mistake("training.optimizer", expected, hint)
    yield from _switches(s)


def _switches(s: JobSpec) -> Iterator[Mistake]:
    """Choices of Megatron's optimizer in the host's memory, which ZeRO's has not."""
    share, early = (
        "parallel.offload_fraction",
        "megatron.overlap_param_gather_with_optim_step",
    )
    if s.parallel.offload_fraction > 1:
        yield s.mistake(share, "a share from 0 to 1")
    else:
        yield from s.refused([early], "false with parallel.offload")
    if s.training.framework == "megatron":
        return
    key = "megatron.overlap_cpu_optimizer_d2h_h2d"
    yield from s.refused([key], "false", "a switch of Megatron's")
    hint = "of ZeRO's partitions all is in the host's memory"
    yield from s.refused([share], "1", hint)


def offloaded_caveat(s: JobSpec) -> Iterator[str]:
    """What an optimizer in the host's memory rests on."""
    if s.parallel.offload == "optimizer":
        yield (
            "the optimizer in the host's memory follows the engine's source; rates are those of PyTorch's fused Adam "
            "on an H100's host, and no such step was measured"
        )


@rule(
    "megatron megatron.use_precision_aware_optimizer parallel.data_parallel parallel.offload "
    "training.optimizer training.framework"
)
def precision_aware(s: JobSpec) -> Iterator[Mistake]:
    """Types of the optimizer's states, which Megatron's distributed Adam alone has."""
    key = "megatron.use_precision_aware_optimizer"
    if not s.megatron.use_precision_aware_optimizer:
        return
    if s.training.framework == "deepspeed":
        yield s.mistake(key, "false", "a switch of Megatron's engine")
    if s.parallel.data_parallel != "zero1":
        hint = "Megatron wants the distributed optimizer for it"
        yield s.mistake("parallel.data_parallel", f'"zero1" with {key}', hint)
    if optimizer(s.training.optimizer).update != "adam":
        hint = "states of other updates are simulated in fp32"
        yield s.mistake("training.optimizer", f'"adam" with {key}', hint)
    if s.parallel.offload != "none":
        names = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        keys = [f"megatron.{name}" for name in names]
        yield from s.refused(keys, '"fp32" with parallel.offload')


@rule("parallel parallel.pp parallel.data_parallel")
def zero2(s: JobSpec) -> Iterator[Mistake]:
    """Gradients in parts, in a pipeline."""
    if s.parallel.data_parallel == "zero2" and s.parallel.pp > 1:
        hint = "ZeRO-2 reduces gradients in every microbatch, which DeepSpeed refuses in a pipeline"
        yield s.mistake("parallel.data_parallel", '"zero1" with pp > 1', hint)


@rule(
    "megatron megatron.defer_embedding_wgrad_compute parallel.pp parallel.data_parallel parallel.schedule "
    "training.framework"
)
def deferred_head(s: JobSpec) -> Iterator[Mistake]:
    """What Megatron refuses beside gradients of the head that come last, and what is not simulated beside them."""
    p, key = s.parallel, "megatron.defer_embedding_wgrad_compute"
    if not s.megatron.defer_embedding_wgrad_compute or p.pp == 1:
        return
    if not s.megatron.gradient_accumulation_fusion:
        hint = "Megatron adds them up in the products themselves"
        yield s.mistake(
            "megatron.gradient_accumulation_fusion", f"true with {key}", hint
        )
    if p.data_parallel not in ("none", "ddp", "ddp-no-overlap", "zero1"):
        hint = "elsewhere no gradient of the head is put off"
        expected = f'"ddp" or "zero1" with {key}'
        yield s.mistake("parallel.data_parallel", expected, hint)
    if s.training.framework == "deepspeed":
        yield s.mistake(key, "false", "a switch of Megatron's engine")
    elif splits_backward(s):
        hint = f"{p.schedule} puts off gradients of all weights"
        yield s.mistake(key, "false", hint)
    elif s.megatron.overlap_moe_expert_parallel_comm:
        hint = "it is not simulated beside megatron.overlap_moe_expert_parallel_comm"
        yield s.mistake(key, "false", hint)
