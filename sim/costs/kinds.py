"""What each kind of kernel must at least do: floating-point operations and bytes, from its shape.

These are lower bounds (every operand once), used by the roofline and as the axes on which measured tables are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from prestep.sim.costs import gemm
from prestep.sim.errors import InputError, did_you_mean
from prestep.sim.graph.kernel import (
    BACKWARD,
    FLEX,
    FUSED_ATTENTION,
    PREFIX,
    PRODUCTS,
    STATED,
    Kernel,
    attention,
)

# Scales included: fp8_block has an fp32 for 128 elements (DeepSeek-V3's activations), mxfp8 a byte for 32 (OCP MX),
# nvfp4 a byte for 16.
DTYPE_BYTES: dict[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp8": 1,
    "fp8_block": 1 + 4 / 128,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
}

# Operations of PyTorch over elements that only move memory: bytes per element and per byte of dtype, reads plus writes.
OPERATIONS = {
    **dict.fromkeys(("add", "sub", "mul"), 3.0),
    **dict.fromkeys(("div", "neg", "silu", "gelu", "relu", "copy", "cat"), 2.0),
    **dict.fromkeys(("silu_backward", "gelu_backward", "threshold_backward"), 3.0),
    "fill": 1.0,
    "mse_loss": 3.0,
    "mse_loss_backward": 4.0,
}
# Kinds that do.
STREAM_PASSES = {
    **{PREFIX + name: passes for name, passes in OPERATIONS.items()},
    "memset": 1.0,
    "sum": 1.0,
    "index_add": 3.0,
    "gather": 2.0,
    "foreach_copy": 2.0,
    "chunk_cat": 2.0,
    "split_with_sizes_copy": 2.0,
    "copy_h2d": 1.0,
    "scatter_add": 3.0,
    # TorchInductor's; the workload knows how many tensors a graph joins and says the bytes itself
    **dict.fromkeys(("fused", "fused_pointwise", "fused_reduction", "fused_norm"), 2.0),
    **dict.fromkeys(("fused_rope", "fused_rope_bwd", "fused_transpose"), 2.0),
    **dict.fromkeys(("fused_add_norm", "fused_add", "fused_cast", "fused_mul"), 3.0),
    "fused_norm_bwd": 6.0,
    "fused_norm_bwd_weight": 7.0,
    "fused_sum": 33.0,
    "fused_mul_bwd": 5.0,
    **{
        f"fused_{name}{part}": passes
        for name in ("silu", "gelu", "relu")
        for part, passes in (("", 2.0), ("_bwd", 3.0), ("_mul", 3.0), ("_mul_bwd", 5.0))
    },
}

#: Floating-point operations for an element of what CUDA cores compute; only of kinds whose definition says the number.
ELEMENTWISE = {
    **dict.fromkeys(("sum", "index_add", "scatter_add"), 1.0),
    **{f"{PREFIX}{name}": 1.0 for name in ("add", "sub", "mul", "div", "neg", "relu")},
    **{f"{PREFIX}{name}": 0.0 for name in ("copy", "cat", "fill")},
    "memset": 0.0,
}

# Kinds whose bytes pass the host's link, which is slower than the GPU's memory.
OVER_PCIE = ("copy_h2d",)

# Operations over rows and columns: passes over rows * columns elements.
ROW_PASSES = {
    f"{PREFIX}{name}{way}": passes
    for name, backward in (
        *(("_fused_rms_norm", "_backward"), ("native_layer_norm", "_backward")),
        *(("_softmax", "_backward_data"), ("_log_softmax", "_backward_data")),
    )
    for way, passes in (("", 2.0), (backward, 3.0))
}

Work = tuple[float, float]


def on_cuda_cores(kind: str, dtype: str) -> bool:
    """Whether CUDA cores compute a type: FP64 has tensor cores on the GPUs measured, which convolutions do not use."""
    return dtype == "fp32" or (dtype == "fp64" and "convolution" in kind)


def _product(kernel: Kernel) -> Work:
    count, (m, n, k) = gemm.products(kernel)
    if kernel.bytes:  # operations may have types that only they name
        return count * 2.0 * m * n * k, kernel.bytes
    each, out = DTYPE_BYTES[kernel.dtype], max(2, DTYPE_BYTES[kernel.dtype])
    return count * 2.0 * m * n * k, count * (each * (m * k + k * n) + out * m * n)


def _attention(kernel: Kernel) -> Work:
    """Two products (backward five) over the scores that a mask leaves: half of them where it is causal."""
    batch, heads, kv_heads, queries, keys, dim = kernel.shape
    back = kernel.kind.endswith(BACKWARD)
    scores = float(batch * heads * queries * keys)
    seen = 0.5 if "causal" in kernel.layout else 1.0
    moved = 2.0 * batch * dim * (2 * heads * queries + 2 * kv_heads * keys)
    return 2.0 * (5 if back else 2) * seen * scores * dim, moved * (2 if back else 1)


def _in_triton(kernel: Kernel) -> Work:
    return _attention(attention(kernel.shape, backward=kernel.kind.endswith("bwd")))


def _sparse_attention(kernel: Kernel) -> Work:
    """Attention of every query's heads to keys of its own choice, which are values: two products, backward five."""
    tokens, heads, keys, dim = kernel.shape
    back = kernel.kind.endswith("_bwd")
    # Queries and outputs, backward with their gradients; keys are fewer, and read from the cache.
    moved = 2.0 * tokens * heads * dim * (4 if back else 2)
    return 2.0 * tokens * heads * keys * dim * (5 if back else 2), moved


def _index_scores(kernel: Kernel) -> Work:
    """A score for each key that every query has, summed over heads: one product, written in fp32."""
    tokens, heads, keys, dim = kernel.shape
    moved = 2.0 * tokens * heads * dim + 4.0 * tokens * keys
    return 2.0 * tokens * heads * keys * dim, moved


def _stream(kernel: Kernel) -> Work:
    if kernel.bytes:
        return 0.0, kernel.bytes
    elements = math.prod(kernel.shape)
    return 0.0, PASSES[kernel.kind] * elements * DTYPE_BYTES[kernel.dtype]


PASSES = STREAM_PASSES | ROW_PASSES


def _scan(kernel: Kernel) -> Work:
    """Of a chunked scan: products inside chunks and with the states; backward makes the states again."""
    batch, seq, keys, key_dim, values, value_dim, chunk = kernel.shape
    tokens, back = batch * seq, kernel.kind.endswith("_bwd")
    inside, states = chunk * (key_dim + value_dim), key_dim * value_dim
    flops = tokens * values * (inside + 4.0 * states)
    moved = 2.0 * tokens * (2 * keys * key_dim + 2 * values * value_dim)
    return flops * (3 if back else 1), moved * (2 if back else 1)


def _over_values(kernel: Kernel) -> Work:
    batch, seq, _, _, values, value_dim, _ = kernel.shape
    passes = 3 if kernel.kind.endswith("_bwd") else 2
    return 0.0, 2.0 * passes * batch * seq * values * value_dim


def _over_channels(kernel: Kernel) -> Work:
    batch, seq, keys, key_dim, values, value_dim, _ = kernel.shape
    passes = 3 if kernel.kind.endswith("_bwd") else 2
    return 0.0, 2.0 * passes * batch * seq * (2 * keys * key_dim + values * value_dim)


ATTENTION_SHAPE = "batch, heads, kv_heads, queries, keys, head_dim"
SCAN_SHAPE = "batch, seq, keys, key_dim, values, value_dim, chunk"
#: What goes with state-space and linear attention, forward and backward: scans, a norm in groups, a convolution.
SCANS = {
    "mamba2": _scan,
    "gdn": _scan,
    "kda": _scan,
    "gated_norm": _over_values,
    "fla_conv1d": _over_channels,
}

# kind -> (shape's field names, rule)
KINDS: dict[str, tuple[str, Callable[[Kernel], Work]]] = {
    **dict.fromkeys(STREAM_PASSES, ("elements", _stream)),
    **dict.fromkeys(ROW_PASSES, ("rows, columns", _stream)),
    **dict.fromkeys(PRODUCTS, ("m, n, k", _product)),
    "aten bmm": ("batch, m, n, k", _product),
    "aten _grouped_mm": ("experts, m, n, k", _product),
    **{
        f"{kind}{way}": (ATTENTION_SHAPE, _attention)
        for kind in (*FUSED_ATTENTION.values(), FLEX)
        for way in ("", BACKWARD)
    },
    **dict.fromkeys(
        ("triton_attention_fwd", "triton_attention_bwd"),
        ("batch, heads, kv_heads, seq, head_dim", _in_triton),
    ),
    **{
        f"{name}_{way}": (SCAN_SHAPE, rule)
        for name, rule in SCANS.items()
        for way in ("fwd", "bwd")
    },
    **dict.fromkeys(
        ("sparse_attention_fwd", "sparse_attention_bwd"),
        ("tokens, heads, keys, head_dim", _sparse_attention),
    ),
    "index_scores": ("tokens, heads, keys, head_dim", _index_scores),
}


def check(kernel: Kernel) -> None:
    """Refuse a kernel whose kind is unknown (unless it says its own bytes or flops) or whose shape does not fit.

    Raises
    ------
    InputError
        Saying the kind, what was found and what the shape should be.
    """
    known = KINDS.get(kernel.kind)
    if known is None:
        if kernel.kind == STATED or kernel.bytes > 0 or kernel.flops > 0:
            return
        hint, kind = did_you_mean(kernel.kind, KINDS), f'"{kernel.kind}"'
        expected = "a known kind, or bytes or flops"
        raise InputError.of("kernel", "kind", kind, expected, hint)
    if kernel.kind.startswith(PREFIX) and (kernel.bytes > 0 or kernel.flops > 0):
        return
    fields = known[0].split(", ")
    bad_count = len(kernel.shape) != len(fields) and fields != ["elements"]
    if bad_count or any(size <= 0 for size in kernel.shape) or not kernel.shape:
        shape, expected = str(kernel.shape), f"positive sizes ({known[0]})"
        raise InputError.of("kernel", kernel.kind, shape, expected)
    if kernel.dtype not in DTYPE_BYTES:
        dtype, expected = f'"{kernel.dtype}"', f"one of {', '.join(DTYPE_BYTES)}"
        raise InputError.of("kernel", "dtype", dtype, expected)


def work(kernel: Kernel) -> Work:
    """(flops, bytes) of a checked kernel: what it says itself, else its kind's rule."""
    rule = KINDS.get(kernel.kind)
    flops, size = rule[1](kernel) if rule else (0.0, 0.0)
    return kernel.flops or flops, kernel.bytes or size


def arithmetic(kernel: Kernel) -> float | None:
    """Floating-point operations of a checked kernel, those of CUDA cores too; None where nobody counts them.

    Examples
    --------
    >>> arithmetic(Kernel("sum", (1024,))), arithmetic(Kernel("aten silu", (1024,)))
    (1024.0, None)
    """
    flops, _ = work(kernel)
    if flops > 0:
        return flops
    each = ELEMENTWISE.get(kernel.kind)
    return None if each is None else each * math.prod(kernel.shape)
