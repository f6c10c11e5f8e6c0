"""What a trainer on PyTorch's plain modules cannot do: rules of [pytorch], [parallel], [training] and [adapter]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prestep.sim.errors import Mistake
from prestep.sim.strict import keys_of
from prestep.workloads.job import JobSpec
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.layout import axis_order
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.optimizer import optimizer
from prestep.workloads.precision import precision

FSDP = ("fsdp", "zero2", "zero3")
#: Updates that a CPU has as well (torch.optim on tensors of the host).
ON_CPU = ("adam", "sgd", "lion")
MEGATRON = 'training.framework = "megatron"'


def stated(s: JobSpec, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those keys of [pytorch] that are not the default, with their values."""
    for name in names:
        value = getattr(s.pytorch, name)
        if value != getattr(PyTorch(), name):
            yield f"pytorch.{name}", str(value)


def trainer(s: JobSpec) -> Iterator[Mistake]:
    """Keys of [pytorch] that the way of parallelism does not have."""
    if s.parallel.pp > 1:
        for key, value in stated(s, ("metrics", "modules")):
            yield Mistake(s.where, key, value, "nothing", "not simulated with pp")
    if s.parallel.data_parallel not in FSDP:
        for key, value in stated(s, keys_of(PyTorch, "fsdp")):
            yield Mistake(
                s.where,
                key,
                value,
                'parallel.data_parallel = "fsdp"',
                "it is a choice of FSDP's",
            )
    elif s.pytorch.fsdp == "2":
        for key, value in stated(s, keys_of(PyTorch, "flat_parameters")):
            yield Mistake(s.where, key, value, 'pytorch.fsdp = "1"')


def stated_root(s: JobSpec) -> Iterator[tuple[str, str]]:
    """Keys of the groups outside of FSDP2's blocks that are not the default, with their values."""
    if s.parallel.root_groups != "one":
        yield "parallel.root_groups", f'"{s.parallel.root_groups}"'
    if s.parallel.reshard_root:
        yield "parallel.reshard_root", "true"


def root(s: JobSpec) -> Iterator[Mistake]:
    """Groups outside of the blocks: FSDP1 has one, and keeps it."""
    if s.parallel.data_parallel in FSDP and s.pytorch.fsdp == "1":
        hint = (
            "FSDP1's root has one flat parameter, which stays until its backward pass"
        )
        for key, value in stated_root(s):
            yield Mistake(s.where, key, value, 'nothing with pytorch.fsdp = "1"', hint)


def no_root(s: JobSpec) -> Iterator[Mistake]:
    """FSDP2's choice where another engine shards parameters."""
    hint = 'of FSDP2 with training.framework = "pytorch-eager" or "pytorch-compiled"'
    for key, value in stated_root(s):
        yield Mistake(s.where, key, value, "nothing", hint)


def liger(s: JobSpec) -> Iterator[Mistake]:
    """Liger's kernels where nothing of transformers is there to be replaced, or not whole."""
    parts, key = s.pytorch.liger, "pytorch.liger"
    if not parts:
        return
    found = str(list(parts))
    if s.pytorch.modules != "transformers":
        hint = 'they replace transformers\' modules: pytorch.modules = "transformers"'
        yield Mistake(s.where, key, found, "nothing", hint)
    for axis in ("tp", "pp", "ep", "cp"):
        count = getattr(s.parallel, axis)
        if count > 1:
            hint = "Liger's kernels are simulated on whole modules"
            yield Mistake(
                s.where, f"parallel.{axis}", str(count), f"1 with {key}", hint
            )
    if {"cross_entropy", "fused_linear_cross_entropy"} <= set(parts):
        hint = "the second has the first in it"
        yield Mistake(s.where, key, found, "one of the two losses", hint)
    for name, value in stated(s, ("loss", "metrics")):
        if any("cross_entropy" in part for part in parts):
            hint = "the loss is Liger's"
            yield Mistake(s.where, name, value, f"nothing with {key}", hint)


def asynchronous(s: JobSpec) -> Iterator[Mistake]:
    """Products beside their exchanges where others stand in their place."""
    quantized = precision(s.training.precision).quantized
    if s.pytorch.async_tensor_parallel and (quantized or s.adapter.on):
        beside = "quantized products" if quantized else "adapters"
        hint = f"asynchronous tensor parallelism with {beside} is not simulated"
        yield Mistake(s.where, "pytorch.async_tensor_parallel", "true", "false", hint)


def vocabulary(s: JobSpec) -> Iterator[Mistake]:
    """A split vocabulary: of tensor-parallel ranks, whose loss is PyTorch's."""
    key, choice = "pytorch.vocabulary", s.pytorch.vocabulary
    if choice == "whole":
        return
    if s.parallel.tp == 1:
        yield Mistake(s.where, key, f'"{choice}"', "parallel.tp > 1 beside it")
    if choice == "split" and s.pytorch.loss == "fused":
        hint = "no rank has all logits of a token"
        expected = '"eager" or "fp32" with a loss by parts'
        yield Mistake(s.where, "pytorch.loss", '"fused"', expected, hint)


def formats(s: JobSpec) -> Iterator[Mistake]:
    """Keys of quantized layers where there are none, or where they are not compiled."""
    number = precision(s.training.precision)
    if not number.quantized:
        for key, value in stated(s, keys_of(PyTorch, "formats")):
            hint = 'training.precision = "fp8" or "nvfp4" quantizes layers'
            yield Mistake(s.where, key, value, "nothing", hint)
        return
    if number.name != "fp8" or s.training.framework != "pytorch-compiled":
        for key, value in stated(s, keys_of(PyTorch, "fp8")):
            hint = 'for precision = "fp8" with framework = "pytorch-compiled"'
            yield Mistake(s.where, key, value, "nothing", hint)
        return
    if s.pytorch.fp8_param_gather and (
        s.pytorch.fp8_scaling != "dynamic"
        or s.pytorch.fsdp != "2"
        or s.parallel.data_parallel not in FSDP
    ):
        expected = 'fp8_scaling = "dynamic" under FSDP2'
        key = "pytorch.fp8_param_gather"
        yield Mistake(s.where, key, "true", expected, "one scale for each weight")


def optimizer_rule(s: JobSpec) -> Iterator[Mistake]:
    """Ways of an update, and updates of whole tensors."""
    rule, where, key = optimizer(s.training.optimizer), s.where, "training.optimizer"
    if s.pytorch.foreach_optimizer and (
        s.pytorch.fused_optimizer or rule.update not in ("adam", "orthogonal")
    ):
        expected = "nothing, or Adam with pytorch.fused_optimizer = false"
        yield Mistake(where, "pytorch.foreach_optimizer", "true", expected)
    if rule.update != "adafactor":
        return
    stated = f'"{rule.name}"'
    if s.parallel.data_parallel in FSDP or s.parallel.tp > 1:
        hint = "sums over rows and columns of a matrix that lies on several ranks are not simulated"
        expected = "adamw8bit or lion with FSDP or tp"
        yield Mistake(where, key, stated, expected, hint)


def scaled(s: JobSpec) -> Iterator[Mistake]:
    """A scaled loss needs parameters in 32 bits, and is not scaled in a pipeline."""
    if not precision(s.training.precision).scaled_loss:
        return
    if not s.pytorch.master_weights:
        hint = "torch.amp.GradScaler refuses gradients in fp16: parameters are in fp32"
        yield Mistake(s.where, "pytorch.master_weights", "false", "true", hint)
    if s.parallel.pp > 1:
        expected = '1 with training.precision = "fp16"'
        yield Mistake(s.where, "parallel.pp", str(s.parallel.pp), expected)


def shards(s: JobSpec) -> Iterator[Mistake]:
    count, ranks = s.parallel.fsdp_shards, s.parallel.dp * s.parallel.cp
    if count is None:
        return
    if s.parallel.data_parallel not in FSDP:
        expected = f"nothing, or parallel.data_parallel {' or '.join(FSDP)}"
        yield Mistake(s.where, "parallel.fsdp_shards", str(count), expected)
    elif ranks % count:
        expected = f"a divisor of dp * cp = {ranks}"
        yield Mistake(s.where, "parallel.fsdp_shards", str(count), expected)


def context(s: JobSpec) -> Iterator[Mistake]:
    """What attention to other ranks' tokens needs, or would have."""
    where, ranks = s.where, s.parallel.cp
    around = ranks > 1 and s.parallel.rings > 1
    if not around:
        for key, value in stated(s, ("rotate_method",)):
            expected = "parallel.cp > 1 beside it, and a ring"
            yield Mistake(where, key, f'"{value}"', expected)
    if ranks == 1:
        return
    if around:
        yield from _ring(s)
    if s.parallel.ep > 1 and s.parallel.ep % ranks:
        hint = "experts are spread over whole groups of cp, as torchtitan has it"
        found, expected = str(s.parallel.ep), f"a multiple of cp = {ranks}"
        yield Mistake(where, "parallel.ep", found, expected, hint)
    if s.parallel.data_parallel == "none":
        hint = "ranks that share samples have parts of each gradient"
        expected = "fsdp, zero1, zero2, zero3, ddp or ddp-no-overlap with cp"
        yield Mistake(where, "parallel.data_parallel", '"none"', expected, hint)


def _ring(s: JobSpec) -> Iterator[Mistake]:
    """What PyTorch's ring needs (`context_parallel`); where heads are exchanged alone, any attention does."""
    where = s.where
    if not s.pytorch.since(2, 7):
        hint = "its context_parallel gives ranks parts from both ends of a sequence"
        found = f'"{s.pytorch.version}"'
        yield Mistake(where, "pytorch.version", found, "2.7 or later with cp", hint)
    if s.pytorch.attention == "triton":
        hint = "context_parallel knows PyTorch's own kernels"
        expected = "cudnn or flash2 with cp"
        yield Mistake(where, "pytorch.attention", '"triton"', expected, hint)
    if s.training.seq_len % (2 * s.parallel.rings):
        hint = "every rank of a ring has a part from each end"
        expected = f"a multiple of 2 * ring_degree = {2 * s.parallel.rings}"
        found = str(s.training.seq_len)
        yield Mistake(where, "training.seq_len", found, expected, hint)


def offload(s: JobSpec) -> Iterator[Mistake]:
    """Parameters in the host's memory: FSDP2's, updated by kernels that the CPU has."""
    p, where = s.parallel, s.where
    if p.offload == "none":
        return
    key, found = "parallel.offload", f'"{p.offload}"'
    if p.offload != "parameters":
        hint = "DeepSpeed and Megatron keep the optimizer alone there"
        yield Mistake(where, key, found, '"none" or "parameters"', hint)
    if p.data_parallel not in FSDP or s.pytorch.fsdp != "2":
        expected = '"none", or parallel.data_parallel = "fsdp" with pytorch.fsdp = "2"'
        yield Mistake(where, key, found, expected, "CPUOffloadPolicy is FSDP2's")
    if optimizer(s.training.optimizer).update not in ON_CPU:
        hint = "its update by the CPU is not simulated"
        stated_as = f'"{s.training.optimizer}"'
        expected = "an optimizer of Adam's, SGD's or Lion's kind with parallel.offload"
        yield Mistake(where, "training.optimizer", stated_as, expected, hint)
    if precision(s.training.precision).scaled_loss:
        hint = "unscaling in the host's memory is not simulated"
        key, stated_as = "training.precision", f'"{s.training.precision}"'
        yield Mistake(where, key, stated_as, "bf16 with parallel.offload", hint)


def zero2(s: JobSpec) -> Iterator[Mistake]:
    """FSDP that frees nothing after the forward pass (SHARD_GRAD_OP)."""
    if s.parallel.data_parallel == "zero2" and s.parallel.reshard_after_forward:
        hint = 'freeing them makes it "zero3"'
        key = "parallel.reshard_after_forward"
        yield Mistake(s.where, key, "true", 'false with "zero2"', hint)


def experts(s: JobSpec) -> Iterator[Mistake]:
    p = s.parallel
    if p.imbalance != "uniform":
        key, found = "parallel.imbalance", str(p.imbalance)
        yield Mistake(s.where, key, found, "nothing", f"for {MEGATRON} only")
    if p.etp != 1 or p.tp == 1:
        return
    if p.ep == 1:
        hint = "experts that no ranks share are split over the tensor-parallel ones"
        expected = f"tp = {p.tp}, or nothing with ep = 1"
        yield Mistake(s.where, "parallel.etp", "1", expected, hint)
    elif not p.sequence_parallel:
        hint = "each rank routes its part of the sequence"
        expected = "true with etp = 1"
        yield Mistake(s.where, "parallel.sequence_parallel", "false", expected, hint)
    if {"fc1", "fc2"} & set(s.adapter.places):
        hint = (
            "adapters beside whole experts on tensor-parallel ranks are not simulated"
        )
        found = ", ".join(s.adapter.targets)
        expected = 'targets ["qkv", "proj"] with etp = 1'
        yield Mistake(s.where, "adapter.targets", found, expected, hint)


def order(s: JobSpec) -> Iterator[Mistake]:
    if s.parallel.order is None or s.parallel.ep == 1:
        return
    order = axis_order(s)
    if order.index("ep") > order.index("dp"):
        hint = "experts are spread over neighbours of the data-parallel axis"
        yield Mistake(
            s.where, "parallel.order", f'"{s.parallel.order}"', "ep before dp", hint
        )


def packed(s: JobSpec) -> Iterator[Mistake]:
    """Documents of a sample apart: by the lengths that FlashAttention 2 takes, or a mask of FlexAttention's."""
    if s.training.packed is None:
        return
    key, found = "training.packed", str(s.training.packed)
    if s.pytorch.attention != "flash2":
        hint = "FlashAttention takes the lengths of documents (flash_attn_varlen), PyTorch's own attention none"
        yield Mistake(s.where, key, found, 'pytorch.attention = "flash2"', hint)
    if s.parallel.rings > 1:
        hint = "documents around a ring are not simulated; parallel.ring_degree = 1 exchanges heads"
        yield Mistake(s.where, "parallel.cp", str(s.parallel.cp), f"1 with {key}", hint)


def adapters(s: JobSpec) -> Iterator[Mistake]:
    """What is not simulated beside frozen weights, and keys of Megatron's adapters."""
    if not s.adapter.on:
        return
    for key in keys_of(Adapter, "megatron"):
        value, usual = getattr(s.adapter, key), getattr(Adapter(), key)
        if value != usual:
            yield Mistake(
                s.where, f"adapter.{key}", str(value), "nothing", f"for {MEGATRON} only"
            )
    if optimizer(s.training.optimizer).iterations:
        found = f'"{s.training.optimizer}"'
        hint = "orthogonal updates of adapters are not simulated"
        expected = "an elementwise optimizer with [adapter]"
        yield Mistake(s.where, "training.optimizer", found, expected, hint)
