"""Kernel families: what a recorded kernel is, told from its name."""

from __future__ import annotations

import re
from functools import cache

COMMUNICATION = "communication"
# First match wins; patterns are of names that cuBLAS, cuDNN, PyTorch, Triton and the communication libraries write.
FAMILIES = (
    (
        COMMUNICATION,
        r"nccl|rccl|msccl|dpsk::ep|deep_ep|multimem|nvshmem|(one|two)_shot_all_reduce|cross_device_reduce",
    ),
    ("attention", r"sdpa|flash|fmha|attention|compute_dot_do_o|convert_dq"),
    ("convolution", r"conv|winograd|implicit_gemm|fprop|dgrad|wgrad"),
    (
        "gemm",
        r"gemm|nvjet|cutlass|cublas|splitK|gemv|(ampere|volta)_.*_(nn|nt|tn)|dot_kernel",
    ),
    ("optimizer", r"multi_tensor_apply|adam|lamb(?!da)|sgd|FusedOptimizer"),
    ("norm", r"norm|bn_fw|bn_bw|batch_norm"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy"),
    ("embedding", r"embedding|index|gather|scatter"),
    ("copy", r"memcpy|copy|cat|memset|fill|transpose|chunk_cat|split_with_sizes"),
    ("reduce", r"reduce|sum|pool|sort|topk|scan"),
    ("compiled", r"^triton_"),
    ("elementwise", r"elementwise|pointwise|functor|dropout|relu|gelu|silu|mul|add"),
)
_COMPILED = tuple(
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES
)


@cache
def family(name: str) -> str:
    """Family of a kernel: "gemm", "attention", ..., "other"."""
    if name.startswith("triton_"):
        return "compiled"
    return next(
        (known for known, pattern in _COMPILED if pattern.search(name)), "other"
    )
