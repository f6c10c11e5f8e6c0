"""What Megatron's optimizers cannot do: parts of parameters and gradients, types of states, the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.optimizer import optimizer

FSDP = ("fsdp", "zero3")


def offloaded(s: JobSpec) -> Iterator[Mistake]:
    """The optimizer in the host's memory: of ranks that update a part of the parameters by Adam."""
    p, where = s.parallel, s.where
    if p.offload == "none":
        return
    key = "parallel.offload"
    if p.offload != "optimizer":
        hint = "FSDP2's CPUOffloadPolicy keeps parameters there"
        yield Mistake(where, key, f'"{p.offload}"', '"optimizer" or "none"', hint)
    of_megatron = s.training.framework == "megatron"
    ways = ("zero1",) if of_megatron else ("zero1", "zero2", "zero3")
    if p.data_parallel not in ways:
        hint = "Megatron's hybrid optimizer is a distributed one, ZeRO-Offload is of ZeRO's partitions"
        expected = f"{' or '.join(ways)} with parallel.offload"
        yield Mistake(
            where, "parallel.data_parallel", f'"{p.data_parallel}"', expected, hint
        )
    if optimizer(s.training.optimizer).update != "adam":
        hint = "its update by the CPU is not simulated"
        expected = "an optimizer of Adam's kind with parallel.offload"
        found = f'"{s.training.optimizer}"'
        yield Mistake(where, "training.optimizer", found, expected, hint)
    yield from _switches(s)


def _switches(s: JobSpec) -> Iterator[Mistake]:
    """Choices of Megatron's optimizer in the host's memory, which ZeRO's has not."""
    p, where = s.parallel, s.where
    if p.offload_fraction > 1:
        expected = "a share from 0 to 1"
        found = str(p.offload_fraction)
        yield Mistake(where, "parallel.offload_fraction", found, expected)
    elif s.megatron.overlap_param_gather_with_optim_step:
        key = "megatron.overlap_param_gather_with_optim_step"
        yield Mistake(where, key, "true", "false with parallel.offload")
    if s.training.framework == "megatron":
        return
    if s.megatron.overlap_cpu_optimizer_d2h_h2d:
        key, hint = "megatron.overlap_cpu_optimizer_d2h_h2d", "a switch of Megatron's"
        yield Mistake(where, key, "true", "false", hint)
    if p.offload_fraction != 1:
        hint = "of ZeRO's partitions all is in the host's memory"
        found = str(p.offload_fraction)
        yield Mistake(where, "parallel.offload_fraction", found, "1", hint)


def offloaded_caveat(s: JobSpec) -> Iterator[str]:
    """What an optimizer in the host's memory rests on."""
    if s.parallel.offload == "optimizer":
        yield (
            "the optimizer in the host's memory follows the engine's source; rates are those of PyTorch's fused Adam "
            "on an H100's host, and no such step was measured"
        )


def precision_aware(s: JobSpec) -> Iterator[Mistake]:
    """Types of the optimizer's states, which Megatron's distributed Adam alone has."""
    if not s.megatron.use_precision_aware_optimizer:
        return
    key, where = "megatron.use_precision_aware_optimizer", s.where
    if s.training.framework == "deepspeed":
        yield Mistake(where, key, "true", "false", "a switch of Megatron's engine")
    if s.parallel.data_parallel != "zero1":
        hint = "Megatron wants the distributed optimizer for it"
        found = f'"{s.parallel.data_parallel}"'
        expected = f'"zero1" with {key}'
        yield Mistake(where, "parallel.data_parallel", found, expected, hint)
    if optimizer(s.training.optimizer).update != "adam":
        found = f'"{s.training.optimizer}"'
        hint = "states of other updates are simulated in fp32"
        yield Mistake(where, "training.optimizer", found, f'"adam" with {key}', hint)
    if s.parallel.offload != "none":
        for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            value = getattr(s.megatron, name)
            if value != "fp32":
                expected = '"fp32" with parallel.offload'
                yield Mistake(where, f"megatron.{name}", f'"{value}"', expected)


def shards(s: JobSpec) -> Iterator[Mistake]:
    """Groups of ranks that share parameters: as many as divide all of them."""
    key, count = "parallel.fsdp_shards", s.parallel.fsdp_shards
    ranks = s.parallel.dp * s.parallel.cp
    if count is None:
        return
    if s.parallel.data_parallel not in FSDP:
        hint = 'Megatron with data_parallel = "fsdp" has shards of its own'
        yield Mistake(s.where, key, str(count), "nothing", hint)
    elif ranks % count:
        expected = f"a divisor of dp * cp = {ranks}"
        yield Mistake(s.where, key, str(count), expected)


def zero2(s: JobSpec) -> Iterator[Mistake]:
    """Gradients in parts, in a pipeline."""
    if s.parallel.data_parallel == "zero2" and s.parallel.pp > 1:
        hint = "ZeRO-2 reduces gradients in every microbatch, which DeepSpeed refuses in a pipeline"
        key, expected = "parallel.data_parallel", '"zero1" with pp > 1'
        yield Mistake(s.where, key, '"zero2"', expected, hint)


def deferred_head(s: JobSpec) -> Iterator[Mistake]:
    """What Megatron refuses beside gradients of the head that come last, and what is not simulated beside them."""
    p, key = s.parallel, "megatron.defer_embedding_wgrad_compute"
    if not s.megatron.defer_embedding_wgrad_compute or p.pp == 1:
        return
    if not s.megatron.gradient_accumulation_fusion:
        hint = "Megatron adds them up in the products themselves"
        where = "megatron.gradient_accumulation_fusion"
        yield Mistake(s.where, where, "false", f"true with {key}", hint)
    if p.data_parallel not in ("none", "ddp", "ddp-no-overlap", "zero1"):
        hint = "elsewhere no gradient of the head is put off"
        found = f'"{p.data_parallel}"'
        expected = f'"ddp" or "zero1" with {key}'
        yield Mistake(s.where, "parallel.data_parallel", found, expected, hint)
    if s.training.framework == "deepspeed":
        yield Mistake(s.where, key, "true", "false", "a switch of Megatron's engine")
    elif splits_backward(s):
        hint = f"{p.schedule} puts off gradients of all weights"
        yield Mistake(s.where, key, "true", "false", hint)
    elif s.megatron.overlap_moe_expert_parallel_comm:
        hint = "it is not simulated beside megatron.overlap_moe_expert_parallel_comm"
        yield Mistake(s.where, key, "true", "false", hint)
