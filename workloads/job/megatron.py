"""The section [megatron] of a scenario: Megatron-LM's switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key

RecomputedModule = Literal[
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
]
GraphedModule = Literal[
    "attn", "mamba", "mlp", "moe_router", "moe_preprocess", "full_iteration"
]
KeptPart = Literal["attn", "mamba_out", "moe_latent", "mtp"]


@dataclass(frozen=True)
class Megatron:
    """Megatron-LM's switches, named after its command line where it has one."""

    attention: Literal["flash", "flash2", "sdpa", "unfused"] = key(
        "flash",
        "one fused kernel (flash2: FlashAttention 2, slower on Hopper; sdpa: the one that PyTorch takes on the "
        "cluster's GPU, by pytorch.version), or batched GEMMs around a softmax that write all scores (Megatron before "
        "2022-12)",
    )
    gradient_accumulation_fusion: bool = key(
        True, "weight gradients are added into the fp32 buffer by the GEMM itself"
    )
    main_grads: Literal["fp32", "bf16"] = key(
        "fp32", "type in which gradients are accumulated and reduced"
    )
    fp32_shards: bool = key(
        False,
        "full sharding: shards of parameters are in fp32 alone and cast as they are gathered (PyTorch's FSDP); else in "
        "16 bits beside those that the optimizer updates (Megatron-FSDP)",
    )
    overlap_grad_reduce: bool = key(
        False, "reduce gradients bucket by bucket beside the last backward pass"
    )
    overlap_param_gather: bool = key(
        False, "gather updated parameters beside the first forward pass"
    )
    align_grad_reduce: bool = key(
        True,
        "overlapped reductions of an interleaved pipeline's chunks begin on all its ranks at one time",
    )
    align_param_gather: bool = key(
        True,
        "so do overlapped gathers, a chunk ahead; else each when it is needed",
    )
    param_gather_from_start: bool = key(
        False,
        "overlapped gathers begin with the step, and each of a rank's when the one before it has come (Megatron before "
        "core 0.9); else a chunk's first waits for the pass that needs it",
    )
    overlap_param_gather_with_optim_step: bool = key(
        False,
        "a rank's first chunk is gathered beside the update of the others (overlap_param_gather_with_optimizer_step)",
    )
    overlap_cpu_optimizer_d2h_h2d: bool = key(
        False,
        "with parallel.offload: the host updates each tensor while gradients of others arrive and parameters leave",
    )
    use_precision_aware_optimizer: bool = key(
        False,
        "Adam takes gradients as they are reduced, and keeps its states in the types below; of parameters in fp32 the "
        "16 bits that bf16 lacks",
    )
    main_params_dtype: Literal["fp32", "fp16"] = key(
        "fp32", "with use_precision_aware_optimizer: parameters that Adam updates"
    )
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = key(
        "fp32", "with use_precision_aware_optimizer: Adam's first moment"
    )
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = key(
        "fp32", "with use_precision_aware_optimizer: Adam's second moment"
    )
    bucket_size: int | None = key(
        None,
        "parameters of a bucket when reduction overlaps, on the pipeline's first rank, in its first chunk; others have "
        "one; default 40 million, or 1 million per data rank",
        low=1,
    )
    fp8_scaling: Literal["delayed", "dynamic", "rowwise", "mx"] = key(
        "delayed",
        "fp8: scales from earlier steps, or found first, one for a tensor, for each row (slower products) or for 32 "
        "elements (MXFP8)",
    )
    fp8_transposes: bool = key(
        True,
        "fp8 operands are written transposed as well: Hopper's products need it, Blackwell's do not",
    )
    num_layers_at_start_in_bf16: int = key(
        0, "first layers whose products stay in 16 bits (first_last_layers_bf16)", low=0
    )
    num_layers_at_end_in_bf16: int = key(
        0, "last layers whose products stay in 16 bits", low=0
    )
    kept_in_bf16: tuple[KeptPart, ...] = key(
        (),
        "parts whose products stay in 16 bits: attention's projections, Mamba's output, projections around latent "
        "experts, layers of multi-token prediction (quant_recipe, keep_mtp_spec_in_bf16)",
    )
    kept_in_mxfp8: tuple[KeptPart, ...] = key(
        (), "parts whose products are in MXFP8 where the others are in NVFP4"
    )
    cp_comm_type: Literal["p2p", "a2a"] = key(
        "p2p",
        "context parallelism: rounds of keys and values, or heads spread instead of the sequence by all-to-alls",
    )
    nvfp4_rht: bool = key(
        True,
        "NVFP4: what products for weights' gradients take is rotated before it is cast (random Hadamard transform)",
    )
    keep_fp8_weight_transpose_cache: bool = key(
        True,
        "fp8 with a scale for a tensor: weights are transposed once; else in every backward pass (AMD's Transformer "
        "Engine)",
    )
    use_transformer_engine_op_fuser: bool = key(
        False,
        "dense feed-forward parts, and adapters with their projections, run as Transformer Engine's fused operations: "
        "the activation quantizes what it makes, an adapter's last product scales and adds",
    )
    fp8_dot_product_attention: bool = key(
        False,
        "fused attention takes queries, keys, values and gradients in fp8, beside layers in fp8 or NVFP4",
    )
    fp8_param_gather: bool = key(
        False, "parameters of layers are gathered in fp8 (FSDP, distributed optimizer)"
    )
    recompute_modules: tuple[RecomputedModule, ...] = key(
        (),
        "parts of a layer that run again in backward (selective recomputation names more than attention's core)",
    )
    recompute_num_layers: int | None = key(
        None,
        "so many layers of each stage run again whole (recompute_method block); the others are kept",
        low=1,
    )
    cuda_graph_scope: tuple[GraphedModule, ...] = key(
        (),
        "parts that are captured in CUDA graphs, for whose operators the host spends nothing",
    )
    recompute_early_stop: bool = key(
        False, "recomputation leaves out what backward does not need (PyTorch 2.1)"
    )
    tp_comm_overlap: bool = key(
        False,
        "split tensor-parallel gathers and GEMMs so that they overlap (user buffers)",
    )
    tp_comm_overlap_rs_dgrad: bool = key(
        False,
        "with tp_comm_overlap: an input's gradient is reduce-scattered in parts, beside the product that makes it; "
        "else beside the weight's gradient, which frozen weights lack",
    )
    async_tensor_model_parallel_allreduce: bool = key(
        True,
        "the all-reduce of an input's gradient runs beside the weight's gradient (Megatron since April 2022)",
    )
    defer_embedding_wgrad_compute: bool = key(
        False,
        "the last stage computes gradients of the head's weights behind its backward passes, while other stages end",
    )
    wgrad_deferral_limit: int = key(
        0, "so many microbatches of a step leave them for then; 0: all", low=0
    )
    overlap_p2p_comm: bool = key(
        True, "interleaved pipelines send and receive beside their computation"
    )
    p2p_sync: bool = key(
        False,
        "the host waits for the GPU after each pipeline transfer (Megatron before core 0.3)",
    )
    launch_blocking: bool = key(
        False,
        "the host waits for the end of all that it launches (CUDA_LAUNCH_BLOCKING=1): nothing overlaps",
    )
    scatter_gather_tensors_in_pipeline: bool = key(
        True,
        "between stages every tensor-parallel rank sends its part of an activation; else all send all of it",
    )
    fused_softmax_check: Literal["keys", "heads"] = key(
        "keys",
        'with attention = "unfused": what the check for the fused softmax takes for the length of a row of scores: its '
        "keys, or by mistake a rank's heads (BigScience's Megatron-DeepSpeed until 6 March 2022)",
    )
    attention_dropout: float = key(0.0, "share of attention weights dropped", low=0)
    hidden_dropout: float = key(0.0, "share of hidden values dropped", low=0)
    vocab_multiple: int = key(
        128,
        "the vocabulary is padded to a multiple of it on every rank (make_vocab_size_divisible_by)",
        low=1,
    )
    account_for_embedding: bool = key(
        False,
        "the embedding counts as a layer in the cut into stages (account_for_embedding_in_pipeline_split)",
    )
    account_for_loss: bool = key(
        False, "so does the head with the loss (account_for_loss_in_pipeline_split)"
    )
    pipeline_layout: str | None = key(
        None,
        "a cut into stages of one's own: E embedding, t layer, m multi-token prediction, L head with the loss, "
        '| between stages, x*n and (...)*n repeated, as in "Et*3|(tt|)*29,m|L" (pipeline_model_parallel_layout)',
    )
    rope_fusion: bool = key(
        True,
        "rotation in one kernel; else in eager operators (YaRN with a scale, which the fused kernel lacks)",
    )
    fused_single_qkv_rope: bool = key(
        False,
        "one kernel cuts queries, keys and values from the projection's output and rotates them; backward it rotates "
        "and joins their gradients",
    )
    bias_fusion: bool = key(
        True, "bias, activation, dropout and residual in one kernel"
    )
    use_fused_mhc: bool = key(
        False,
        "several residual streams are mixed by fused kernels (cuTile's on Blackwell); else by what torch.compile makes",
    )
    dsa_indexer_loss_coeff: float = key(
        0.0,
        "compressed attention: weight of the loss that trains its indexer, over the keys chosen; 0: it is not trained",
        low=0,
    )
    cross_entropy_fusion: bool = key(True, "loss in one pass")
    cross_entropy_fusion_impl: Literal["native", "te", "torch", "torch-fp32"] = key(
        "native",
        "whose loss: Megatron's own, in fp32; Transformer Engine's, in 16 bits and in the logits' place; or PyTorch's "
        "log_softmax and nll_loss, in 16 bits or behind a cast",
    )
    moe_token_dispatcher: Literal["alltoall", "allgather", "flex"] = key(
        "alltoall",
        "how tokens reach their experts: permuted and sent, gathered by all, or DeepEP's kernels (flex)",
    )
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] = key(
        "deepep",
        "whose kernels flex is: DeepEP's by their measured times, or HybridEP's, by a published bandwidth",
    )
    moe_deepep_num_sms: int = key(
        20, "SMs that DeepEP's kernels take on every GPU", low=2
    )
    moe_grouped_gemm: bool = key(
        True,
        "one grouped GEMM for the experts of a rank; else one expert after the other",
    )
    overlap_moe_expert_parallel_comm: bool = key(
        False,
        "tokens travel beside the computation of another microbatch (1F1B with all-to-all overlap)",
    )
    moe_router_fusion: bool = key(
        False,
        "scores, choice and auxiliary loss by a kernel each; else by elementwise operators",
    )
    moe_permute_fusion: bool = key(
        True, "tokens are permuted by one kernel instead of sorted and indexed"
    )
    moe_fused_mlp: bool = key(
        False,
        "fp8 experts: activation and quantizing in the grouped GEMMs (cutedsl_fused_grouped_mlp)",
    )
    moe_shared_expert_overlap: bool = key(
        False, "shared experts are computed beside the exchange of tokens"
    )
    moe_capacity: float | None = key(
        None,
        "most tokens of an expert over the mean (moe_expert_capacity_factor); default none are dropped",
        above=0,
    )
    moe_pad_to_capacity: bool = key(
        False, "experts are padded to their capacity (moe_pad_expert_input_to_capacity)"
    )
    moe_force_load_balancing: bool = key(
        False,
        "random routing, every expert alike whatever parallel.imbalance says (moe_router_force_load_balancing)",
    )
