"""What a trainer on PyTorch's plain modules cannot do: rules of [pytorch], [parallel], [training] and [adapter]."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.strict import keys_of
from prestep.workloads.frameworks import framework_of, rule
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
#: Keys of the groups outside of FSDP2's blocks.
ROOT = ("parallel.root_groups", "parallel.reshard_root")


def choices(part: str) -> list[str]:
    """Keys of [pytorch] that are choices of a part of it."""
    return [f"pytorch.{name}" for name in keys_of(PyTorch, part)]


@rule("pytorch training parallel parallel.pp parallel.data_parallel")
def trainer(s: JobSpec) -> Iterator[Mistake]:
    """Keys of [pytorch] that the way of parallelism does not have."""
    if s.parallel.pp > 1:
        keys = ("pytorch.metrics", "pytorch.modules")
        yield from s.refused(keys, "nothing", "not simulated with pp")
    if s.parallel.data_parallel not in FSDP:
        expected = 'parallel.data_parallel = "fsdp"'
        yield from s.refused(choices("fsdp"), expected, "it is a choice of FSDP's")
    elif s.pytorch.fsdp == "2":
        yield from s.refused(choices("flat_parameters"), 'pytorch.fsdp = "1"')


@rule("parallel parallel.data_parallel pytorch.fsdp")
def root(s: JobSpec) -> Iterator[Mistake]:
    """Groups outside of the blocks: FSDP1 has one, and keeps it."""
    if s.parallel.data_parallel in FSDP and s.pytorch.fsdp == "1":
        hint = (
            "FSDP1's root has one flat parameter, which stays until its backward pass"
        )
        yield from s.refused(ROOT, 'nothing with pytorch.fsdp = "1"', hint)


@rule("parallel")
def no_root(s: JobSpec) -> Iterator[Mistake]:
    """FSDP2's choice where another engine shards parameters."""
    hint = 'of FSDP2 with training.framework = "pytorch-eager" or "pytorch-compiled"'
    yield from s.refused(ROOT, "nothing", hint)


@rule("pytorch parallel training")
def liger(s: JobSpec) -> Iterator[Mistake]:
    """Liger's kernels where nothing of transformers is there to be replaced, or not whole."""
    parts, key = s.pytorch.liger, "pytorch.liger"
    if not parts:
        return
    if s.pytorch.modules != "transformers":
        hint = 'they replace transformers\' modules: pytorch.modules = "transformers"'
        yield s.mistake(key, "nothing", hint)
    axes = ("parallel.tp", "parallel.pp", "parallel.ep", "parallel.cp")
    hint = "Liger's kernels are simulated on whole modules"
    yield from s.refused(axes, f"1 with {key}", hint)
    if {"cross_entropy", "fused_linear_cross_entropy"} <= set(parts):
        yield s.mistake(key, "one of the two losses", "the second has the first in it")
    if any("cross_entropy" in part for part in parts):
        keys = ("pytorch.loss", "pytorch.metrics")
        yield from s.refused(keys, f"nothing with {key}", "the loss is Liger's")


@rule("pytorch training adapter")
def asynchronous(s: JobSpec) -> Iterator[Mistake]:
    """Products beside their exchanges where others stand in their place."""
    quantized = precision(s.training.precision).quantized
    if s.pytorch.async_tensor_parallel and (quantized or s.adapter.on):
        beside = "quantized products" if quantized else "adapters"
        hint = f"asynchronous tensor parallelism with {beside} is not simulated"
        yield s.mistake("pytorch.async_tensor_parallel", "false", hint)


@rule("pytorch parallel.tp")
def vocabulary(s: JobSpec) -> Iterator[Mistake]:
    """A split vocabulary: of tensor-parallel ranks, whose loss is PyTorch's."""
    choice = s.pytorch.vocabulary
    if choice != "whole" and s.parallel.tp == 1:
        yield s.mistake("pytorch.vocabulary", "parallel.tp > 1 beside it")
    if choice == "split" and s.pytorch.loss == "fused":
        expected = '"eager" or "fp32" with a loss by parts'
        hint = "no rank has all logits of a token"
        yield s.mistake("pytorch.loss", expected, hint)


@rule("pytorch training parallel.data_parallel")
def formats(s: JobSpec) -> Iterator[Mistake]:
    """Keys of quantized layers where there are none, or where they are not compiled."""
    number = precision(s.training.precision)
    if not number.quantized:
        hint = 'training.precision = "fp8" or "nvfp4" quantizes layers'
        yield from s.refused(choices("formats"), "nothing", hint)
    elif number.name != "fp8" or s.training.framework != "pytorch-compiled":
        hint = 'for precision = "fp8" with framework = "pytorch-compiled"'
        yield from s.refused(choices("fp8"), "nothing", hint)
    elif s.pytorch.fp8_param_gather and (
        s.pytorch.fp8_scaling != "dynamic"
        or s.pytorch.fsdp != "2"
        or s.parallel.data_parallel not in FSDP
    ):
        expected = 'fp8_scaling = "dynamic" under FSDP2'
        hint = "one scale for each weight"
        yield s.mistake("pytorch.fp8_param_gather", expected, hint)


@rule("pytorch training parallel.tp parallel.data_parallel")
def optimizer_rule(s: JobSpec) -> Iterator[Mistake]:
    """Ways of an update, and updates of whole tensors."""
    update = optimizer(s.training.optimizer).update
    if s.pytorch.foreach_optimizer and (
        s.pytorch.fused_optimizer or update not in ("adam", "orthogonal")
    ):
        expected = "nothing, or Adam with pytorch.fused_optimizer = false"
        yield s.mistake("pytorch.foreach_optimizer", expected)
    split = s.parallel.data_parallel in FSDP or s.parallel.tp > 1
    if update == "adafactor" and split:
        hint = "sums over rows and columns of a matrix that lies on several ranks are not simulated"
        expected = "adamw8bit or lion with FSDP or tp"
        yield s.mistake("training.optimizer", expected, hint)


@rule("pytorch training parallel.pp")
def scaled(s: JobSpec) -> Iterator[Mistake]:
    """A scaled loss needs parameters in 32 bits, and is not scaled in a pipeline."""
    if not precision(s.training.precision).scaled_loss:
        return
    if not s.pytorch.master_weights:
        hint = "torch.amp.GradScaler refuses gradients in fp16: parameters are in fp32"
        yield s.mistake("pytorch.master_weights", "true", hint)
    yield from s.refused(["parallel.pp"], '1 with training.precision = "fp16"')


@rule("parallel parallel.fsdp_shards parallel.dp parallel.cp parallel.data_parallel")
def shards(s: JobSpec) -> Iterator[Mistake]:
    """Groups of ranks that share parameters: as many as divide all of them."""
    count, ranks = s.parallel.fsdp_shards, s.parallel.dp * s.parallel.cp
    if count is None:
        return
    ways = framework_of(s).sharded
    if s.parallel.data_parallel not in ways:
        expected = f"nothing, or parallel.data_parallel {' or '.join(ways)}"
        yield s.mistake("parallel.fsdp_shards", expected)
    elif ranks % count:
        expected = f"a divisor of dp * cp = {ranks}"
        yield s.mistake("parallel.fsdp_shards", expected)


@rule("parallel pytorch training training.seq_len")
def context(s: JobSpec) -> Iterator[Mistake]:
    """What attention to other ranks' tokens needs, or would have."""
    ranks = s.parallel.cp
    if ranks > 1 and s.parallel.rings > 1:
        yield from _ring(s)
    else:
        expected = "parallel.cp > 1 beside it, and a ring"
        yield from s.refused(["pytorch.rotate_method"], expected)
    if s.parallel.ep > 1 and s.parallel.ep % ranks:
        hint = "experts are spread over whole groups of cp, as torchtitan has it"
        yield s.mistake("parallel.ep", f"a multiple of cp = {ranks}", hint)
    same = s.parallel.dp * ranks
    if s.pytorch.expert_group == "ddp" and s.parallel.ep not in (1, same):
        hint = "a communicator is shared by exchanges of the same ranks"
        expected = f'"own", or ep = dp * cp = {same}'
        yield s.mistake("pytorch.expert_group", expected, hint)
    if ranks > 1 and s.parallel.data_parallel == "none":
        hint = "ranks that share samples have parts of each gradient"
        expected = "fsdp, zero1, zero2, zero3, ddp or ddp-no-overlap with cp"
        yield s.mistake("parallel.data_parallel", expected, hint)


def _ring(s: JobSpec) -> Iterator[Mistake]:
    """What PyTorch's ring needs (`context_parallel`); where heads are exchanged alone, any attention does."""
    if not s.pytorch.since(2, 7):
        hint = "its context_parallel gives ranks parts from both ends of a sequence"
        yield s.mistake("pytorch.version", "2.7 or later with cp", hint)
    if s.pytorch.attention == "triton":
        hint = "context_parallel knows PyTorch's own kernels"
        yield s.mistake("pytorch.attention", "cudnn or flash2 with cp", hint)
    if s.training.seq_len % (2 * s.parallel.rings):
        hint = "every rank of a ring has a part from each end"
        expected = f"a multiple of 2 * ring_degree = {2 * s.parallel.rings}"
        yield s.mistake("training.seq_len", expected, hint)


@rule("parallel pytorch training")
def offload(s: JobSpec) -> Iterator[Mistake]:
    """Parameters in the host's memory: FSDP2's, updated by kernels that the CPU has."""
    p, key = s.parallel, "parallel.offload"
    if p.offload == "none":
        return
    if p.offload != "parameters":
        hint = "DeepSpeed and Megatron keep the optimizer alone there"
        yield s.mistake(key, '"none" or "parameters"', hint)
    if p.data_parallel not in FSDP or s.pytorch.fsdp != "2":
        expected = '"none", or parallel.data_parallel = "fsdp" with pytorch.fsdp = "2"'
        yield s.mistake(key, expected, "CPUOffloadPolicy is FSDP2's")
    if optimizer(s.training.optimizer).update not in ON_CPU:
        expected = "an optimizer of Adam's, SGD's or Lion's kind with parallel.offload"
        hint = "its update by the CPU is not simulated"
        yield s.mistake("training.optimizer", expected, hint)
    if precision(s.training.precision).scaled_loss:
        hint = "unscaling in the host's memory is not simulated"
        yield s.mistake("training.precision", f"bf16 with {key}", hint)


@rule("parallel parallel.data_parallel")
def zero2(s: JobSpec) -> Iterator[Mistake]:
    """FSDP that frees nothing after the forward pass (SHARD_GRAD_OP)."""
    if s.parallel.data_parallel == "zero2" and s.parallel.reshard_after_forward:
        hint = 'freeing them makes it "zero3"'
        expected = 'false with "zero2"'
        yield s.mistake("parallel.reshard_after_forward", expected, hint)


@rule(
    "parallel parallel.tp parallel.etp parallel.ep parallel.sequence_parallel parallel.imbalance adapter.targets"
)
def experts(s: JobSpec) -> Iterator[Mistake]:
    """Experts of uneven loads, or whole on tensor-parallel ranks."""
    p = s.parallel
    yield from s.refused(["parallel.imbalance"], "nothing", f"for {MEGATRON} only")
    if p.etp != 1 or p.tp == 1:
        return
    if p.ep == 1:
        hint = "experts that no ranks share are split over the tensor-parallel ones"
        yield s.mistake("parallel.etp", f"tp = {p.tp}, or nothing with ep = 1", hint)
    elif not p.sequence_parallel:
        hint = "each rank routes its part of the sequence"
        yield s.mistake("parallel.sequence_parallel", "true with etp = 1", hint)
    if {"fc1", "fc2"} & set(s.adapter.places):
        hint = (
            "adapters beside whole experts on tensor-parallel ranks are not simulated"
        )
        expected = 'targets ["qkv", "proj"] with etp = 1'
        yield s.mistake("adapter.targets", expected, hint)


@rule("parallel parallel.order parallel.ep")
def order(s: JobSpec) -> Iterator[Mistake]:
    """Experts spread over other ranks than neighbours of the data-parallel axis."""
    if s.parallel.order is None or s.parallel.ep == 1:
        return
    order = axis_order(s)
    if order.index("ep") > order.index("dp"):
        hint = "experts are spread over neighbours of the data-parallel axis"
        yield s.mistake("parallel.order", "ep before dp", hint)


@rule("training.packed pytorch.attention parallel.cp parallel.ring_degree")
def packed(s: JobSpec) -> Iterator[Mistake]:
    """Documents of a sample apart: by the lengths that FlashAttention 2 takes, or a mask of FlexAttention's."""
    if s.training.packed is None:
        return
    key = "training.packed"
    if s.pytorch.attention != "flash2":
        hint = "FlashAttention takes the lengths of documents (flash_attn_varlen), PyTorch's own attention none"
        yield s.mistake(key, 'pytorch.attention = "flash2"', hint)
    if s.parallel.rings > 1:
        hint = "documents around a ring are not simulated; parallel.ring_degree = 1 exchanges heads"
        yield s.mistake("parallel.cp", f"1 with {key}", hint)


@rule("adapter training.optimizer")
def adapters(s: JobSpec) -> Iterator[Mistake]:
    """What is not simulated beside frozen weights, and keys of Megatron's adapters."""
    if not s.adapter.on:
        return
    keys = [f"adapter.{key}" for key in keys_of(Adapter, "megatron")]
    yield from s.refused(keys, "nothing", f"for {MEGATRON} only")
    if optimizer(s.training.optimizer).iterations:
        hint = "orthogonal updates of adapters are not simulated"
        expected = "an elementwise optimizer with [adapter]"
        yield s.mistake("training.optimizer", expected, hint)
