"""The section [megatron] of a scenario: Megatron-LM's switches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from prestep.sim.strict import key

RecomputedModule = Literal[
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
]
GraphedModule = Literal[
    "attn", "mamba", "mlp", "moe_router", "moe_preprocess", "full_iteration"
]
KeptPart = Literal["attn", "mamba_out", "moe_latent", "mtp"]
#: A key of Megatron's own engine, in whose place NeMo Automodel has PyTorch reduce, gather and send.
engine = partial(key, of="megatron")
staged = partial(engine, wants="parallel.pp > 1")
#: Keys of layers with experts, and of those that quantize.
moe, low_precision = (
    partial(key, wants="model.experts > 0"),
    partial(key, wants="quantized"),
)


@dataclass(frozen=True)
class Megatron:
    """Megatron-LM's switches, named after its command line where it has one."""

    OF: ClassVar = "megatron automodel"

    attention: Literal["flash", "flash2", "sdpa", "unfused"] = key(
        "flash",
        "one fused kernel (flash2: FlashAttention 2, slower on Hopper; sdpa: the one that PyTorch takes on the "
        "cluster's GPU, by pytorch.version), or batched GEMMs around a softmax that write all scores (Megatron before "
        "2022-12)",
    )
    gradient_accumulation_fusion: bool = engine(
        True,
        "weight gradients are added into the fp32 buffer by the GEMM itself",
        wants="training.framework = megatron",
    )
    main_grads: Literal["fp32", "bf16"] = engine(
        "fp32", "type in which gradients are accumulated and reduced"
    )
    fp32_shards: bool = engine(
        False,
        "full sharding: shards of parameters are in fp32 alone and cast as they are gathered (PyTorch's FSDP); else in "
        "16 bits beside those that the optimizer updates (Megatron-FSDP)",
        wants="parallel.data_parallel = fsdp or zero3",
    )
    overlap_grad_reduce: bool = engine(
        False,
        "reduce gradients bucket by bucket beside the last backward pass",
        wants="replicated",
    )
    overlap_param_gather: bool = engine(
        False,
        "gather updated parameters beside the first forward pass",
        wants="replicated",
    )
    align_grad_reduce: bool = engine(
        True,
        "overlapped reductions of an interleaved pipeline's chunks begin on all its ranks at one time",
        wants="interleaved; reduced",
    )
    align_param_gather: bool = engine(
        True,
        "so do overlapped gathers, a chunk ahead; else each when it is needed",
        wants="interleaved; gathered",
    )
    param_gather_from_start: bool = engine(
        False,
        "overlapped gathers begin with the step, and each of a rank's when the one before it has come (Megatron before "
        "core 0.9); else a chunk's first waits for the pass that needs it",
        wants="gathered; unaligned",
    )
    overlap_param_gather_with_optim_step: bool = engine(
        False,
        "a rank's first chunk is gathered beside the update of the others (overlap_param_gather_with_optimizer_step)",
        wants="gathered; parallel.vpp > 1",
    )
    overlap_cpu_optimizer_d2h_h2d: bool = engine(
        False,
        "with parallel.offload: the host updates each tensor while gradients of others arrive and parameters leave",
        wants="parallel.offload = optimizer",
    )
    use_precision_aware_optimizer: bool = engine(
        False,
        "Adam takes gradients as they are reduced, and keeps its states in the types below; of parameters in fp32 the "
        "16 bits that bf16 lacks",
    )
    main_params_dtype: Literal["fp32", "fp16"] = engine(
        "fp32",
        "with use_precision_aware_optimizer: parameters that Adam updates",
        wants="megatron.use_precision_aware_optimizer",
    )
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = engine(
        "fp32",
        "with use_precision_aware_optimizer: Adam's first moment",
        wants="megatron.use_precision_aware_optimizer",
    )
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = engine(
        "fp32",
        "with use_precision_aware_optimizer: Adam's second moment",
        wants="megatron.use_precision_aware_optimizer",
    )
    clip_grad_on_device: bool = engine(
        False,
        "the norm of gradients stays on the GPU: no host waits for it, nor for the end of a step",
    )
    bucket_size: int | None = engine(
        None,
        "parameters of a bucket when reduction overlaps, on the pipeline's first rank, in its first chunk; others have "
        "one; default 40 million, or 1 million per data rank",
        low=1,
    )
    fp8_scaling: Literal["delayed", "dynamic", "rowwise", "mx"] = low_precision(
        "delayed",
        "fp8: scales from earlier steps, or found first, one for a tensor, for each row (slower products) or for 32 "
        "elements (MXFP8)",
    )
    fp8_transposes: bool = low_precision(
        True,
        "fp8 operands are written transposed as well: Hopper's products need it, Blackwell's do not",
    )
    num_layers_at_start_in_bf16: int = low_precision(
        0, "first layers whose products stay in 16 bits (first_last_layers_bf16)", low=0
    )
    num_layers_at_end_in_bf16: int = low_precision(
        0, "last layers whose products stay in 16 bits", low=0
    )
    kept_in_bf16: tuple[KeptPart, ...] = low_precision(
        (),
        "parts whose products stay in 16 bits: attention's projections, Mamba's output, projections around latent "
        "experts, layers of multi-token prediction (quant_recipe, keep_mtp_spec_in_bf16)",
    )
    kept_in_mxfp8: tuple[KeptPart, ...] = key(
        (),
        "parts whose products are in MXFP8 where the others are in NVFP4",
        wants="quantized; training.precision = nvfp4",
    )
    nvfp4_rht: bool = engine(
        True,
        "NVFP4: what products for weights' gradients take is rotated before it is cast (random Hadamard transform)",
        wants="training.precision = nvfp4",
    )
    keep_fp8_weight_transpose_cache: bool = engine(
        True,
        "fp8 with a scale for a tensor: weights are transposed once; else in every backward pass (AMD's Transformer "
        "Engine)",
        wants="training.precision = fp8",
    )
    use_transformer_engine_op_fuser: bool = engine(
        False,
        "dense feed-forward parts, and adapters with their projections, run as Transformer Engine's fused operations: "
        "the activation quantizes what it makes, an adapter's last product scales and adds",
        wants="fusible",
    )
    fp8_dot_product_attention: bool = low_precision(
        False,
        "fused attention takes queries, keys, values and gradients in fp8, beside layers in fp8 or NVFP4",
    )
    fp8_output_proj: bool = low_precision(
        False,
        "the head's products are quantized as the layers' are; else they stay in 16 bits",
    )
    fp8_param_gather: bool = engine(
        False,
        "parameters of layers are gathered in fp8 (FSDP; distributed optimizer, which gathers MXFP8 in 16 bits)",
        wants="quantized",
    )
    recompute_modules: tuple[RecomputedModule, ...] = key(
        (),
        "parts of a layer that run again in backward (selective recomputation names more than attention's core)",
    )
    recompute_num_layers: int | None = key(
        None,
        "so many layers of each stage run again whole (recompute_method block); the others are kept",
        low=1,
        wants="training.recompute = full",
    )
    cuda_graph_scope: tuple[GraphedModule, ...] = key(
        (),
        "parts that are captured in CUDA graphs, for whose operators the host spends nothing",
    )
    recompute_early_stop: bool = key(
        False,
        "recomputation leaves out what backward does not need (PyTorch 2.1)",
        wants="training.recompute = full",
    )
    tp_comm_overlap: bool = key(
        False,
        "split tensor-parallel gathers and GEMMs so that they overlap (user buffers)",
        wants="parallel.tp > 1; parallel.sequence_parallel",
    )
    tp_comm_overlap_rs_dgrad: bool = key(
        False,
        "with tp_comm_overlap: an input's gradient is reduce-scattered in parts, beside the product that makes it; "
        "else beside the weight's gradient, which frozen weights lack",
        wants="parallel.tp > 1; parallel.sequence_parallel; megatron.tp_comm_overlap",
    )
    async_tensor_model_parallel_allreduce: bool = key(
        True,
        "the all-reduce of an input's gradient runs beside the weight's gradient (Megatron since April 2022)",
        wants="parallel.tp > 1",
    )
    defer_embedding_wgrad_compute: bool = staged(
        False,
        "the last stage computes gradients of the head's weights behind its backward passes, while other stages end",
    )
    wgrad_deferral_limit: int = engine(
        0,
        "so many microbatches of a step leave them for then; 0: all",
        low=0,
        wants="megatron.defer_embedding_wgrad_compute",
    )
    overlap_p2p_comm: bool = engine(
        True,
        "interleaved pipelines send and receive beside their computation",
        wants="parallel.pp > 1; interleaved",
    )
    p2p_sync: bool = staged(
        False,
        "the host waits for the GPU after each pipeline transfer (Megatron before core 0.3)",
    )
    launch_blocking: bool = engine(
        False,
        "the host waits for the end of all that it launches (CUDA_LAUNCH_BLOCKING=1): nothing overlaps",
    )
    scatter_gather_tensors_in_pipeline: bool = engine(
        True,
        "between stages every tensor-parallel rank sends its part of an activation; else all send all of it",
        wants="parallel.tp > 1; parallel.pp > 1",
    )
    fused_softmax_check: Literal["keys", "heads"] = key(
        "keys",
        'with attention = "unfused": what the check for the fused softmax takes for the length of a row of scores: its '
        "keys, or by mistake a rank's heads (BigScience's Megatron-DeepSpeed until 6 March 2022)",
        wants="megatron.attention = unfused",
    )
    attention_dropout: float = key(
        0.0,
        "share of attention weights dropped",
        low=0,
        wants="megatron.attention = unfused",
    )
    hidden_dropout: float = key(0.0, "share of hidden values dropped", low=0)
    vocab_multiple: int = key(
        128,
        "the vocabulary is padded to a multiple of it on every rank (make_vocab_size_divisible_by)",
        low=1,
    )
    account_for_embedding: bool = staged(
        False,
        "the embedding counts as a layer in the cut into stages (account_for_embedding_in_pipeline_split)",
    )
    account_for_loss: bool = staged(
        False, "so does the head with the loss (account_for_loss_in_pipeline_split)"
    )
    pipeline_layout: str | None = staged(
        None,
        "a cut into stages of one's own: E embedding, t layer, m multi-token prediction, L head with the loss, "
        '| between stages, x*n and (...)*n repeated, as in "Et*3|(tt|)*29,m|L" (pipeline_model_parallel_layout)',
    )
    rope_fusion: bool = key(
        True,
        "rotation in one kernel; else in eager operators (YaRN with a scale, which the fused kernel lacks)",
    )
    fused_single_qkv_rope: bool = engine(
        False,
        "one kernel cuts queries, keys and values from the projection's output and rotates them; backward it rotates "
        "and joins their gradients",
    )
    bias_fusion: bool = key(
        True, "bias, activation, dropout and residual in one kernel", wants="biased"
    )
    use_fused_mhc: bool = key(
        False,
        "several residual streams are mixed by fused kernels (cuTile's on Blackwell); else by what torch.compile makes",
        wants="model.streams > 1",
    )
    dsa_indexer_loss_coeff: float = key(
        0.0,
        "compressed attention: weight of the loss that trains its indexer, over the keys chosen; 0: it is not trained",
        low=0,
        wants="model.compress_ratios",
    )
    cross_entropy_fusion: bool = key(True, "loss in one pass")
    cross_entropy_fusion_impl: Literal["native", "te", "torch", "torch-fp32"] = key(
        "native",
        "whose loss: Megatron's own, in fp32; Transformer Engine's, in 16 bits and in the logits' place; or PyTorch's "
        "log_softmax and nll_loss, in 16 bits or behind a cast",
    )
    moe_token_dispatcher: Literal["alltoall", "allgather", "flex"] = moe(
        "alltoall",
        "how tokens reach their experts: permuted and sent, gathered by all, or DeepEP's kernels (flex)",
    )
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] = key(
        "deepep",
        "whose kernels flex is: DeepEP's by their measured times, or HybridEP's, by a published bandwidth",
        wants="model.experts > 0; megatron.moe_token_dispatcher = flex",
    )
    moe_deepep_num_sms: int = key(
        20,
        "SMs that DeepEP's kernels take on every GPU",
        low=2,
        wants="model.experts > 0; megatron.moe_token_dispatcher = flex",
    )
    moe_hybridep_num_sms: int = key(
        16,
        "SMs that HybridEP's kernels take on every GPU; their measured speed is that of 16",
        low=2,
        wants="model.experts > 0; megatron.moe_token_dispatcher = flex",
    )
    moe_grouped_gemm: bool = moe(
        True,
        "one grouped GEMM for the experts of a rank; else one expert after the other",
    )
    overlap_moe_expert_parallel_comm: bool = engine(
        False,
        "tokens travel beside the computation of another microbatch (1F1B with all-to-all overlap)",
        wants="model.experts > 0",
    )
    moe_router_fusion: bool = engine(
        False,
        "scores, choice and auxiliary loss by a kernel each; else by elementwise operators",
        wants="model.experts > 0",
    )
    moe_permute_fusion: bool = moe(
        True, "tokens are permuted by one kernel instead of sorted and indexed"
    )
    moe_fused_mlp: bool = key(
        False,
        "fp8 experts: activation and quantizing in the grouped GEMMs (cutedsl_fused_grouped_mlp)",
        wants="model.experts > 0; quantized",
    )
    moe_shared_expert_overlap: bool = key(
        False,
        "shared experts are computed beside the exchange of tokens",
        wants="model.experts > 0; model.shared_experts > 0",
    )
    moe_capacity: float | None = moe(
        None,
        "most tokens of an expert over the mean (moe_expert_capacity_factor); default none are dropped",
        above=0,
    )
    moe_pad_to_capacity: bool = key(
        False,
        "experts are padded to their capacity (moe_pad_expert_input_to_capacity)",
        wants="model.experts > 0; megatron.moe_capacity",
    )
    moe_force_load_balancing: bool = moe(
        False,
        "random routing, every expert alike whatever parallel.imbalance says (moe_router_force_load_balancing)",
    )
