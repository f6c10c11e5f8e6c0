"""Rules of fine-tuning: adapters beside frozen weights, and packed samples."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.spec.sections import Scenario
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.adapter import TARGETS, targets_of
from prestep.workloads.precision import precision


def targets(s: Scenario) -> Iterator[Mistake]:
    """Names of projections that mean something, and at least one."""
    known, unknown = targets_of(s.adapter.targets)
    expected = (
        f"some of {', '.join(TARGETS)}, or modules' names such as linear_qkv or o_proj"
    )
    for name in unknown:
        yield Mistake(s.where, "adapter.targets", f'"{name}"', expected)
    if not known and not unknown:
        yield Mistake(s.where, "adapter.targets", "none", expected)


def dropout(s: Scenario) -> Iterator[Mistake]:
    """A share below one."""
    if s.adapter.dropout >= 1:
        found = str(s.adapter.dropout)
        yield Mistake(s.where, "adapter.dropout", found, "a share below 1")


def framework(s: Scenario) -> Iterator[Mistake]:
    """A framework whose layers with adapters are simulated."""
    if s.adapter.on and not framework_of(s).adapters:
        hint = (
            "adapters are simulated in Megatron's layers and in PyTorch's own modules"
        )
        expected = (
            'framework = "megatron", "automodel", "pytorch-eager" or "pytorch-compiled"'
        )
        yield Mistake(s.where, "adapter.kind", f'"{s.adapter.kind}"', expected, hint)


def fp32(s: Scenario) -> Iterator[Mistake]:
    """Adapters in fp32 where a framework's layers run under autocast, in 16 bits."""
    if not s.adapter.fp32:
        return
    if not framework_of(s).fp32_adapters:
        hint = "it is PEFT's way beside PyTorch's own modules"
        expected = 'false, or framework = "pytorch-eager" or "pytorch-compiled"'
        yield Mistake(s.where, "adapter.fp32", "true", expected, hint)
    elif precision(s.training.precision).wide:
        hint = f"{s.training.precision} is in 32 bits itself"
        yield Mistake(s.where, "adapter.fp32", "true", "false", hint)


def base(s: Scenario) -> Iterator[Mistake]:
    """Weights in four bits: bitsandbytes' linear layers, whole on every rank."""
    found, parallel = f'"{s.adapter.base}"', s.parallel
    if s.adapter.base == "bf16":
        return
    if not framework_of(s).fp32_adapters:
        hint = "bitsandbytes replaces PyTorch's own linear layers"
        expected = '"bf16", or framework = "pytorch-eager"'
        yield Mistake(s.where, "adapter.base", found, expected, hint)
    elif parallel.data_parallel in ("fsdp", "zero2", "zero3") or parallel.tp > 1:
        hint = "parts of weights in four bits are not simulated"
        expected = '"bf16", or whole weights (data_parallel = "ddp", tp = 1)'
        yield Mistake(s.where, "adapter.base", found, expected, hint)
    elif precision(s.training.precision).wide:
        expected = 'training.precision = "bf16" beside it'
        yield Mistake(s.where, "adapter.base", found, expected)


def packed(s: Scenario) -> Iterator[Mistake]:
    """Packed samples where attention can tell their documents apart."""
    if s.training.packed is None:
        return
    found = str(s.training.packed)
    if not framework_of(s).packs:
        hint = "packed samples are simulated in Megatron's layers and in PyTorch's own modules"
        expected = 'framework = "megatron" or "pytorch-eager"'
        yield Mistake(s.where, "training.packed", found, expected, hint)
    elif s.megatron.attention == "unfused":
        hint = "attention that writes all scores does not tell documents apart"
        yield Mistake(s.where, "training.packed", found, "a fused attention", hint)
    if s.training.packed > s.training.seq_len:
        expected = f"at most training.seq_len = {s.training.seq_len}"
        yield Mistake(s.where, "training.packed", found, expected)
