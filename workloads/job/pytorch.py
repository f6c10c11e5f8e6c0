"""The section [pytorch] of a scenario: PyTorch's switches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from prestep.sim.strict import key

LigerPart = Literal[
    "rope", "rms_norm", "glu", "cross_entropy", "fused_linear_cross_entropy"
]
#: Keys of PyTorch's engine, which NeMo Automodel puts around other layers; of that one alone; of all on PyTorch.
shared, automodel = partial(key, of="pytorch automodel"), partial(key, of="automodel")
common = partial(key, of="pytorch automodel megatron")
#: Keys of FSDP, of its flat parameters, and of layers in fp8.
fully_sharded, flat = (
    partial(shared, parts="fsdp"),
    partial(key, parts="fsdp flat_parameters"),
)
fp8 = partial(key, parts="fp8 formats")


@dataclass(frozen=True)
class PyTorch:
    """What a trainer on plain PyTorch chooses (frameworks pytorch-eager and pytorch-compiled)."""

    OF: ClassVar = "pytorch"

    version: Literal["1.13", "2.0", "2.1", "2.3", "2.5", "2.7", "2.11", "2.13"] = (
        common(
            "2.11",
            "decides recomputation (2.1), layer norms (2.7), attention (2.11), transfers of pipelines (2.10, 2.13)",
            wants="versioned",
        )
    )
    cuda: Literal["11", "12", "13"] = common(
        "12", "toolkit: 11's cuBLAS is slower on Hopper; 13's cuDNN faster on Blackwell"
    )
    attention: Literal["auto", "cudnn", "flash", "flash2", "efficient", "triton"] = key(
        "auto",
        "auto: this version's (cuDNN from 2.11, else flash); flash2: its library's",
    )
    rotate_method: Literal["allgather", "alltoall"] = key(
        "allgather", "context parallelism: one all-gather, or rank to rank"
    )
    async_tensor_parallel: bool = key(
        False,
        "eager: products beside their exchanges, by copy engines (torchtitan's option)",
        wants="parallel.tp > 1; parallel.sequence_parallel",
    )
    recompute_attention: bool = key(
        False,
        'recompute = "products": attention too (torchtitan before December 2025)',
        wants="training.recompute = products",
    )
    checkpoint_compiled: Literal["inside", "around"] = key(
        "inside",
        "within a compiled block (torchtitan), or around it, which runs whole again (torchtune)",
        wants="training.framework = pytorch-compiled; training.recompute = full or alternate",
    )
    joined_qkv: bool = key(False, "one projection for queries, keys and values")
    modules: Literal["plain", "transformers"] = key(
        "plain",
        "eager: PyTorch's layers, or Hugging Face's with unfused norms and rotations",
    )
    liger: tuple[LigerPart, ...] = key(
        (), 'modules = "transformers": parts as kernels of Liger'
    )
    transformers: Literal["4", "5"] = key(
        "5",
        "its release: 5 groups experts",
        wants="pytorch.modules = transformers; model.experts > 0",
    )
    experts: Literal["auto", "loop", "grouped"] = key(
        "auto",
        "auto: transformers' by release, else loop: in turn; grouped",
        wants="model.experts > 0",
    )
    expert_group: Literal["own", "ddp"] = key(
        "own",
        "expert exchanges: own communicator, or DDP's",
        wants="parallel.ep > 1; parallel.data_parallel = ddp",
    )
    loss: Literal["eager", "fp32", "fused"] = key(
        "eager", "log_softmax and nll_loss, the same in fp32, or one kernel"
    )
    vocabulary: Literal["whole", "gathered", "split"] = key(
        "whole",
        "tensor parallelism: whole on every rank, rows with logits gathered, or loss by parts",
    )
    metrics: int = key(0, "fp32 losses of a microbatch, for metrics", low=0)
    master_weights: bool = shared(False, "parameters and optimizer in fp32")
    wide_moments: bool = shared(False, "fp32 moments beside 16-bit parameters")
    fused_optimizer: bool = shared(True, "one kernel for many tensors; else eight each")
    foreach_optimizer: bool = key(
        False,
        "fused_optimizer = false: each of Adam's eight steps in one kernel (PyTorch's foreach); roots take as much "
        "memory as parameters",
    )
    clip_gradients: bool = shared(False, "gradients are scaled by their norm")
    expandable_segments: bool = key(
        False,
        "PyTorch's allocator lets segments grow (PYTORCH_ALLOC_CONF), and reserves less",
    )
    fsdp: Literal["2", "1"] = key(
        "2",
        "fully_shard, or FullyShardedDataParallel with flat parameters",
        parts="fsdp",
    )
    reduce_dtype: Literal["bf16", "fp32"] = fully_sharded(
        "bf16", "type in which FSDP reduces gradients"
    )
    experts_reduce_dtype: Literal["bf16", "fp32"] | None = automodel(
        None,
        "automodel: the same for experts, which NeMo Automodel shards without a mixed precision policy (bf16); default "
        "as reduce_dtype",
        wants="model.experts > 0",
    )
    reduce_every_microbatch: bool = fully_sharded(
        False,
        "gradients are reduced in every microbatch, not in the last alone",
        wants="accumulated",
    )
    forward_prefetch: int = automodel(
        0, "automodel: layers gathered ahead", low=0, parts="fsdp"
    )
    backward_prefetch: int = automodel(
        1, "automodel: the same, backward", low=0, parts="fsdp"
    )
    prefetch: Literal["before", "after"] = flat(
        "before",
        "fsdp = 1: the next gather is issued before or after a module's backward pass",
    )
    limit_all_gathers: bool = flat(
        True, "fsdp = 1: the host waits until the module before the last is freed"
    )
    fp8_scaling: Literal["dynamic", "rowwise", "mx"] = fp8(
        "dynamic",
        "precision = fp8 in compiled blocks: one scale for a tensor (tensorwise), each row (slower casts) or 32 "
        "elements (MXFP8), all found first (torchao)",
    )
    fp8_param_gather: bool = fp8(
        False, "FSDP gathers the weights of fp8 layers in fp8 (float8 all-gather)"
    )
    bf16_layers: int = key(
        0,
        "so many last blocks compute in 16 bits where others are quantized",
        low=0,
        parts="formats",
    )

    eager_operators: tuple[Literal["norm", "activation"], ...] = automodel(
        (),
        "automodel: RMS norms and gated activations that run operator by operator, as Hugging Face's modules do; else "
        "one kernel each",
    )
    attention_waits: bool = automodel(
        False,
        "automodel: the host waits for the GPU in every attention, where it asks whether positions are packed (Hugging "
        "Face's FlashAttention, one sample at once)",
    )
    timed_rounds: bool = automodel(
        False,
        "automodel: the host waits for the GPU after each round of gradient accumulation, as a timer does (in a "
        "pipeline: after its schedule)",
    )
    compiled_layers: bool = automodel(
        False,
        "automodel: layers are compiled; an adapter's sum is made by the kernel that reads it, and the host needs no "
        "DTensor for tensor-parallel products",
        wants="assembled",
    )

    def since(self, *release: int) -> bool:
        """Whether this is the release of PyTorch, such as (2, 1), or a later one."""
        return tuple(map(int, self.version.split("."))) >= release
