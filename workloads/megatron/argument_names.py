"""Names of Megatron-LM's arguments and the scenario keys that they are (megatron/training/arguments.py, core v0.13)."""

from __future__ import annotations

import re
from typing import Any

# argument -> section and key, for values taken as they are
NUMBERS = {
    "num-layers": "model.layers",
    "hidden-size": "model.hidden",
    "ffn-hidden-size": "model.ffn",
    "num-attention-heads": "model.heads",
    "kv-channels": "model.head_dim",
    "vocab-size": "model.vocab",
    "padded-vocab-size": "model.vocab",
    "num-experts": "model.experts",
    "moe-ffn-hidden-size": "model.moe_ffn",
    "mtp-num-layers": "model.mtp_layers",
    "wgrad-deferral-limit": "megatron.wgrad_deferral_limit",
    "mamba-num-heads": "model.mamba_heads",
    "mamba-head-dim": "model.mamba_head_dim",
    "mamba-state-dim": "model.mamba_state",
    "mamba-num-groups": "model.mamba_groups",
    "moe-latent-size": "model.moe_latent",
    "moe-n-hash-layers": "model.hash_layers",
    "o-groups": "model.o_groups",
    "o-lora-rank": "model.o_lora_rank",
    "csa-window-size": "model.window",
    "dsa-indexer-n-heads": "model.index_heads",
    "dsa-indexer-head-dim": "model.index_head_dim",
    "dsa-indexer-topk": "model.index_topk",
    "seq-length": "training.seq_len",
    "micro-batch-size": "training.micro_batch",
    "global-batch-size": "training.global_batch",
    "tensor-model-parallel-size": "parallel.tp",
    "pipeline-model-parallel-size": "parallel.pp",
    "context-parallel-size": "parallel.cp",
    "expert-model-parallel-size": "parallel.ep",
    "expert-tensor-parallel-size": "parallel.etp",
    "num-virtual-stages-per-pipeline-rank": "parallel.vpp",
    "ddp-bucket-size": "megatron.bucket_size",
    "moe-deepep-num-sms": "megatron.moe_deepep_num_sms",
    "moe-hybridep-num-sms": "megatron.moe_hybridep_num_sms",
    "make-vocab-size-divisible-by": "megatron.vocab_multiple",
}
# Taken as the text that they are.
TEXTS = {
    "hybrid-override-pattern": "model.layer_pattern",
    "hybrid-layer-pattern": "model.layer_pattern",
}
LATENT = {
    "q-lora-rank": "q_lora_rank",
    "kv-lora-rank": "kv_lora_rank",
    "qk-head-dim": "head_dim",
    "qk-pos-emb-head-dim": "rope_head_dim",
    "v-head-dim": "v_head_dim",
}
# Of compressed attention (DeepSeek-V4), whose heads of values are those of queries.
COMPRESSED = {
    "q-lora-rank": "q_lora_rank",
    "qk-pos-emb-head-dim": "rope_head_dim",
    "v-head-dim": "head_dim",
}
REALS = {
    "dsa-indexer-loss-coeff": "megatron.dsa_indexer_loss_coeff",
    "attention-dropout": "megatron.attention_dropout",
    "hidden-dropout": "megatron.hidden_dropout",
    "moe-expert-capacity-factor": "megatron.moe_capacity",
}
# argument without a value -> section, key, and what it sets
SWITCHES: dict[str, tuple[str, Any]] = {
    "squared-relu": ("model.activation", "relu2"),
    "untie-embeddings-and-output-weights": ("model.tied_embeddings", False),
    "disable-bias-linear": ("model.bias", False),
    "add-qkv-bias": ("model.qkv_bias", True),
    "qk-layernorm": ("model.qk_norm", True),
    "moe-router-enable-expert-bias": ("model.router_bias", True),
    "use-rotary-position-embeddings": ("model.positions", "rope"),
    "bf16": ("training.precision", "bf16"),
    "fp16": ("training.precision", "fp16"),
    "recompute-activations": ("training.recompute", "selective"),
    "sequence-parallel": ("parallel.sequence_parallel", True),
    "use-distributed-optimizer": ("parallel.data_parallel", "zero1"),
    "overlap-grad-reduce": ("megatron.overlap_grad_reduce", True),
    "overlap-param-gather": ("megatron.overlap_param_gather", True),
    "no-align-grad-reduce": ("megatron.align_grad_reduce", False),
    "no-align-param-gather": ("megatron.align_param_gather", False),
    "overlap-param-gather-with-optimizer-step": (
        "megatron.overlap_param_gather_with_optim_step",
        True,
    ),
    "defer-embedding-wgrad-compute": (
        "megatron.defer_embedding_wgrad_compute",
        True,
    ),
    "tp-comm-overlap": ("megatron.tp_comm_overlap", True),
    "no-gradient-accumulation-fusion": ("megatron.gradient_accumulation_fusion", False),
    "cross-entropy-loss-fusion": ("megatron.cross_entropy_fusion", True),
    "grad-reduce-in-bf16": ("megatron.main_grads", "bf16"),
    "accumulate-allreduce-grads-in-fp32": ("megatron.main_grads", "fp32"),
    "no-overlap-p2p-communication": ("megatron.overlap_p2p_comm", False),
    "no-scatter-gather-tensors-in-pipeline": (
        "megatron.scatter_gather_tensors_in_pipeline",
        False,
    ),
    "no-async-tensor-model-parallel-allreduce": (
        "megatron.async_tensor_model_parallel_allreduce",
        False,
    ),
    "use-fused-mhc": ("megatron.use_fused_mhc", True),
    "account-for-embedding-in-pipeline-split": ("megatron.account_for_embedding", True),
    "account-for-loss-in-pipeline-split": ("megatron.account_for_loss", True),
    "no-rope-fusion": ("megatron.rope_fusion", False),
    "fused-single-qkv-rope": ("megatron.fused_single_qkv_rope", True),
    "no-bias-dropout-fusion": ("megatron.bias_fusion", False),
    "moe-grouped-gemm": ("megatron.moe_grouped_gemm", True),
    "use-transformer-engine-op-fuser": (
        "megatron.use_transformer_engine_op_fuser",
        True,
    ),
    "moe-router-fusion": ("megatron.moe_router_fusion", True),
    "moe-permute-fusion": ("megatron.moe_permute_fusion", True),
    "moe-pad-expert-input-to-capacity": ("megatron.moe_pad_to_capacity", True),
    "moe-shared-expert-overlap": ("megatron.moe_shared_expert_overlap", True),
    "moe-router-force-load-balancing": ("megatron.moe_force_load_balancing", True),
    "moe-enable-deepep": ("megatron.moe_token_dispatcher", "flex"),
    "overlap-moe-expert-parallel-comm": (
        "megatron.overlap_moe_expert_parallel_comm",
        True,
    ),
}
WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "normalization": ("model.norm", {"RMSNorm": "rms", "LayerNorm": "layer"}),
    "position-embedding-type": (
        "model.positions",
        {"rope": "rope", "learned_absolute": "learned", "none": "none", "yarn": "rope"},
    ),
    "recompute-granularity": (
        "training.recompute",
        {"full": "full", "selective": "selective"},
    ),
    "fp8-format": ("training.precision", {"hybrid": "fp8", "e4m3": "fp8"}),
    "optimizer": ("training.optimizer", {"adam": "adam"}),
    "cross-entropy-fusion-impl": (
        "megatron.cross_entropy_fusion_impl",
        {"native": "native", "te": "te"},
    ),
    "softmax-type": ("model.sinks", {"vanilla": False, "learnable": True}),
    "moe-token-dispatcher-type": (
        "megatron.moe_token_dispatcher",
        {w: w for w in ("alltoall", "allgather", "flex")},
    ),
    "moe-flex-dispatcher-backend": (
        "megatron.moe_flex_dispatcher_backend",
        {w: w for w in ("deepep", "hybridep")},
    ),
    "recompute-modules": ("training.recompute", {"core_attn": "selective"}),
}
# Read below, beside each other.
OTHERS = (
    "swiglu",
    "num-query-groups",
    "group-query-attention",
    "max-position-embeddings",
    "moe-router-topk",
    "moe-layer-freq",
    "moe-shared-expert-intermediate-size",
    "multi-latent-attention",
    "window-size",
    "window-attn-skip-freq",
    "activation-func-clamp-value",
    "quick-geglu",
    "num-layers-per-virtual-pipeline-stage",
    "is-hybrid-model",
    "experimental-attention-variant",
    "csa-compress-ratios",
    "enable-hyper-connections",
    "num-residual-streams",
    "dsa-indexer-use-sparse-loss",
)
# No time of a step depends on these (or no more than is known here): data, files, logs, optimizer's numbers, launchers.
PASSED = re.compile(
    r"("
    r"data|train|valid|test|eval|split|tokenizer|save|load|ckpt|dist-ckpt|log|tensorboard|wandb|lr|min-lr|"
    r"weight-decay|clip-grad|adam-|init-|seed|exit|timing|distributed-|nproc|nnodes|node|master|rdzv|local|"
    r"rotary|rope|yarn|mscale|beta|norm-epsilon|no-load|no-save|mock|num-workers|vocab-file|merge|"
    r"manual-gc|profile|use-pytorch-profiler|attention-backend|use-flash|use-mcore|moe-aux|moe-z|"
    r"moe-router-(load|dtype|score|group|num|topk-scaling|pre|bias|force|fusion)|override|auto-detect|"
    r"no-create|bias-update|attention-softmax|apply-layernorm-1p|no-masked|glu-linear|sft|"
    r"enable-experimental|cross-entropy-fusion-impl|no-mmap|trust|te-rng|no-check|empty-unused|"
    r"high-priority|first-last|fp8-(recipe|amax|margin|interval)|mtp-loss|moe-permute-padding|use-legacy|"
    r"no-async|async-save|calculate|disable-straggler|create-attention|reset|eod|rerun|straggler|"
    r"moe-token-drop|delay-wgrad|transformer-impl|"
    r"csa-compress-rotary|mhc-(sinkhorn|init)|apply-dsa-kernel-fusion"
    r")"
)
