"""Scenarios of the largest published models, as their papers have them."""

from __future__ import annotations

# Llama 3 405B as its paper has it (arXiv 2407.21783, table 4): 16,384 GPUs, TP 8, PP 16, DP 128, 16M tokens.
LLAMA = {
    "cluster": {"name": "rail-h100", "hosts": 2048},
    "model": {"name": "llama3.1-405b"},
    "training": {
        "framework": "megatron",
        "seq_len": 8192,
        "micro_batch": 1,
        "global_batch": 2048,
    },
    "parallel": {
        "dp": 128,
        "tp": 8,
        "pp": 16,
        "sequence_parallel": True,
        "uneven_stages": True,
        "data_parallel": "zero1",
        "vpp": 2,
        "schedule": "interleaved",
    },
    "megatron": {"overlap_grad_reduce": True, "overlap_param_gather": True},
}


# DeepSeek-V3 (arXiv 2412.19437, section 3): 2,048 H800, PP 16, EP 64 over 8 hosts, DualPipe, fp8.
DEEPSEEK = {
    "cluster": {"name": "rail-h800", "hosts": 256},
    "model": {"name": "deepseek-v3"},
    "training": {
        "framework": "megatron",
        "seq_len": 4096,
        "micro_batch": 1,
        "global_batch": 15360,
        "precision": "fp8",
    },
    "parallel": {
        "dp": 128,
        "pp": 16,
        "ep": 64,
        "uneven_stages": True,
        "data_parallel": "zero1",
        "schedule": "dualpipe",
    },
    "megatron": {
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "moe_token_dispatcher": "flex",
    },
}
