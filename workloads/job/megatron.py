"""The section [megatron] of a scenario: Megatron-LM's switches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from prestep.sim.strict import key

RecomputedModule = Literal[
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
    "gdn_norm_out",
    "mhc",
]
GraphedModule = Literal[
    "attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess", "full_iteration"
]
KeptPart = Literal["attn", "mamba_out", "moe_latent", "mtp"]
#: A key of Megatron's own engine, in whose place NeMo Automodel has PyTorch reduce, gather and send.
engine = partial(key, of="megatron")
staged = partial(engine, wants="parallel.pp > 1")
interleaved = partial(engine, wants="parallel.pp > 1; interleaved")
#: Keys of layers with experts, of their kernels for tokens, and of layers that quantize.
moe = partial(key, wants="model.experts > 0")
flex = partial(key, wants="model.experts > 0; megatron.moe_token_dispatcher = flex")
low_precision = partial(key, wants="quantized")
#: Keys of the precision-aware optimizer, of attention whose scores are in memory, and of layers that run again whole.
aware = partial(engine, wants="megatron.use_precision_aware_optimizer")
unfused = partial(key, wants="megatron.attention = unfused")
rerun = partial(key, wants="training.recompute = full")


@dataclass(frozen=True)
class Megatron:
    """Megatron-LM's switches, named after its command line where it has one."""

    OF: ClassVar = "megatron automodel"

    attention: Literal["flash", "flash2", "sdpa", "unfused"] = key(
        "flash",
        "kernel; flash2 is slower on Hopper; sdpa: PyTorch's choice; unfused: GEMMs and softmax",
    )
    transformer_impl: Literal["transformer_engine", "local", "legacy"] = engine(
        "transformer_engine",
        "whose modules the host calls; local: Megatron's own; legacy: of 2022",
        wants="training.framework = megatron",
    )
    gradient_accumulation_fusion: bool = engine(
        True, "GEMMs add into fp32 gradients", wants="training.framework = megatron"
    )
    main_grads: Literal["fp32", "bf16"] = engine(
        "fp32", "type of accumulated gradients"
    )
    fp32_shards: bool = engine(
        False,
        "fully sharded: parameters in fp32 only (PyTorch's FSDP)",
        wants="parallel.data_parallel = fsdp or zero3",
    )
    deepspeed_version: Literal["0.6", "0.12.5"] = engine(
        "0.12.5",
        "its release; before 0.12.5 slices of buckets went to their ranks",
        wants="training.framework = deepspeed; parallel.data_parallel = zero1 or zero2",
    )
    overlap_grad_reduce: bool = engine(
        False, "reduce gradients beside the last backward pass", wants="replicated"
    )
    overlap_param_gather: bool = engine(
        False, "gather parameters beside the first forward pass", wants="replicated"
    )
    align_grad_reduce: bool = engine(
        True,
        "interleaved: all ranks reduce a chunk at once",
        wants="interleaved; reduced",
    )
    align_param_gather: bool = engine(
        True,
        "interleaved: all ranks gather a chunk ahead, at once",
        wants="interleaved; gathered",
    )
    param_gather_from_start: bool = engine(
        False,
        "all gathers start with the step (before core 0.9)",
        wants="gathered; unaligned",
    )
    overlap_param_gather_with_optim_step: bool = engine(
        False,
        "gather the first chunk beside the optimizer",
        wants="gathered; parallel.vpp > 1",
    )
    overlap_cpu_optimizer_d2h_h2d: bool = engine(
        False,
        "offload: copies overlap the host's update",
        wants="parallel.offload = optimizer",
    )
    use_precision_aware_optimizer: bool = engine(
        False, "Adam takes reduced gradients and the state types below"
    )
    main_params_dtype: Literal["fp32", "fp16"] = aware(
        "fp32", "precision-aware: parameters"
    )
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = aware(
        "fp32", "precision-aware: first moment"
    )
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = aware(
        "fp32", "precision-aware: second moment"
    )
    clip_grad_on_device: bool = engine(
        False, "the host does not wait for the gradients' norm", wants="waiting"
    )
    check_for_nan_in_grad: bool = engine(
        False, "the host reads the norm of each bucket of gradients"
    )
    bucket_size: int | None = engine(
        None,
        "parameters of a reduced bucket; default 40 million, or 1 million per data rank",
        low=1,
    )
    fp8_scaling: Literal["delayed", "dynamic", "rowwise", "mx"] = low_precision(
        "delayed",
        "scales of a tensor, from earlier steps or now; of each row; or of 32 elements (MXFP8)",
    )
    fp8_transposes: bool = low_precision(
        True, "fp8 operands are also written transposed (Hopper needs it)"
    )
    num_layers_at_start_in_bf16: int = low_precision(
        0, "first layers kept in 16 bits", low=0
    )
    num_layers_at_end_in_bf16: int = low_precision(
        0, "last layers kept in 16 bits", low=0
    )
    kept_in_bf16: tuple[KeptPart, ...] = low_precision((), "parts kept in 16 bits")
    kept_in_mxfp8: tuple[KeptPart, ...] = key(
        (),
        "parts in MXFP8 where others are in NVFP4",
        wants="quantized; training.precision = nvfp4",
    )
    nvfp4_rht: bool = engine(
        True,
        "NVFP4: random Hadamard transform before weight gradients",
        wants="training.precision = nvfp4",
    )
    keep_fp8_weight_transpose_cache: bool = engine(
        True,
        "fp8: weights are transposed once, not in every backward pass",
        wants="training.precision = fp8",
    )
    use_transformer_engine_op_fuser: bool = engine(
        False,
        "feed-forward and adapters as Transformer Engine's fused operations",
        wants="fusible",
    )
    fp8_dot_product_attention: bool = low_precision(
        False, "attention in fp8, beside fp8 or NVFP4 layers"
    )
    exchange_result_again: bool = key(
        False,
        "exchanged heads: backward exchanges the result, too (Transformer Engine before 2.8)",
        wants="parallel.cp > 1",
    )
    fp8_output_proj: bool = low_precision(False, "the head in fp8 too")
    fp8_param_gather: bool = engine(
        False, "gather parameters in fp8", wants="quantized"
    )
    recompute_modules: tuple[RecomputedModule, ...] = key(
        (), "parts recomputed in backward"
    )
    recompute_num_layers: int | None = rerun(
        None, "whole layers recomputed in each stage", low=1
    )
    cuda_graph_scope: tuple[GraphedModule, ...] = key((), "parts in CUDA graphs")
    recompute_early_stop: bool = rerun(
        False, "recompute only what backward needs (PyTorch 2.1)"
    )
    tp_comm_overlap: bool = key(
        False,
        "overlap tensor-parallel exchanges and GEMMs (user buffers)",
        wants="parallel.tp > 1; parallel.sequence_parallel",
    )
    tp_comm_overlap_rs_dgrad: bool = key(
        False,
        "overlap the input gradient's reduce-scatter with its own product",
        wants="parallel.tp > 1; parallel.sequence_parallel; megatron.tp_comm_overlap",
    )
    async_tensor_model_parallel_allreduce: bool = key(
        True,
        "all-reduce beside the weight's gradient (since April 2022)",
        wants="parallel.tp > 1",
    )
    device_connections: int = engine(
        1,
        "CUDA_DEVICE_MAX_CONNECTIONS; with 1 operations begin in the order of their launches",
        low=1,
    )
    defer_embedding_wgrad_compute: bool = staged(
        False, "the head's weight gradients wait for the pipeline's end"
    )
    wgrad_deferral_limit: int = engine(
        0,
        "of so many microbatches; 0: all",
        low=0,
        wants="megatron.defer_embedding_wgrad_compute",
    )
    overlap_p2p_comm: bool = interleaved(
        True, "interleaved: send and receive beside computation"
    )
    p2p_sync: bool = staged(
        False, "the host waits after each transfer (before core 0.3)"
    )
    launch_blocking: bool = engine(False, "CUDA_LAUNCH_BLOCKING=1: nothing overlaps")
    scatter_gather_tensors_in_pipeline: bool = engine(
        True,
        "tensor-parallel ranks send their part of an activation",
        wants="parallel.tp > 1; parallel.pp > 1",
    )
    fused_softmax_check: Literal["keys", "heads"] = unfused(
        "keys",
        "unfused: row length that is checked: keys, or by mistake heads (BigScience)",
    )
    attention_dropout: float = unfused(0.0, "share of attention weights dropped", low=0)
    hidden_dropout: float = key(0.0, "share of hidden values dropped", low=0)
    vocab_multiple: int = key(
        128, "pads the vocabulary (make_vocab_size_divisible_by)", low=1
    )
    account_for_embedding: bool = staged(
        False, "the embedding counts as a layer of a stage"
    )
    account_for_loss: bool = staged(False, "the loss counts as a layer of a stage")
    microbatch_group_size_per_vp_stage: int | None = interleaved(
        None,
        "microbatches that a stage runs before the next of its rank; none: pp",
        low=1,
    )
    pipeline_layout: str | None = staged(
        None,
        'stages by hand, as in "Et*3|(tt|)*29,m|L": E embedding, t layer, m multi-token prediction, L loss',
    )
    rope_fusion: bool = key(True, "rotation in one kernel")
    fused_single_qkv_rope: bool = engine(
        False, "one kernel cuts and rotates queries and keys"
    )
    bias_fusion: bool = key(
        True, "bias, activation, dropout and residual fused", wants="biased"
    )
    use_fused_mhc: bool = key(
        False,
        "fused kernels for residual streams; else torch.compile's",
        wants="model.streams > 1",
    )
    dsa_indexer_loss_coeff: float = key(
        0.0,
        "weight of the indexer's loss; 0: none",
        low=0,
        wants="model.index_topk",
    )
    dsa_indexer_rotate_activation: bool = key(
        True,
        "a Hadamard matrix mixes the indexer's heads",
        wants="model.kv_lora_rank; model.index_topk",
    )
    cross_entropy_fusion: bool = key(True, "loss in one pass")
    cross_entropy_fusion_impl: Literal["native", "te", "torch", "torch-fp32"] = key(
        "native",
        "Megatron's in fp32, Transformer Engine's in place, PyTorch's in 16 bits, or after a cast",
    )
    moe_token_dispatcher: Literal["alltoall", "allgather", "flex"] = moe(
        "alltoall", "permuted and sent, gathered by all, or DeepEP's (flex)"
    )
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] = flex(
        "deepep", "flex: whose kernels"
    )
    moe_deepep_num_sms: int = flex(20, "SMs of DeepEP's kernels", low=2)
    moe_hybridep_num_sms: int = flex(16, "SMs of HybridEP's kernels", low=2)
    moe_grouped_gemm: bool = moe(True, "one GEMM for all experts of a rank")
    overlap_moe_expert_parallel_comm: bool = engine(
        False, "exchange tokens beside another microbatch", wants="model.experts > 0"
    )
    moe_router_fusion: bool = engine(
        False, "fused kernels for scores, choice and loss", wants="model.experts > 0"
    )
    moe_permute_fusion: bool = moe(True, "one kernel permutes tokens")
    moe_fused_mlp: bool = key(
        False,
        "fp8: activation and quantization inside the grouped GEMMs",
        wants="model.experts > 0; quantized",
    )
    moe_shared_expert_overlap: bool = key(
        False,
        "shared experts beside the exchange",
        wants="model.experts > 0; model.shared_experts > 0",
    )
    moe_capacity: float | None = moe(
        None, "most tokens of an expert over the mean; default none dropped", above=0
    )
    moe_pad_to_capacity: bool = key(
        False,
        "pad experts to their capacity",
        wants="model.experts > 0; megatron.moe_capacity",
    )
    moe_force_load_balancing: bool = moe(
        False, "random, balanced routing, whatever parallel.imbalance says"
    )
