"""What a GPU is asked to do once: a kernel by kind, shape and type."""

from __future__ import annotations

from dataclasses import dataclass

#: A kernel whose time the scenario says: its shape is nanoseconds.
STATED = "stated"


@dataclass(frozen=True)
class Kernel:
    """One aten operation on the GPU (it may be several CUDA kernels back to back; see `Gpu.duration`).

    Attributes
    ----------
    kind
        "gemm", "add", "attention_fwd", ...; `docs/costs.md` lists the kinds and their shapes.
    shape
        Sizes, in the order the kind defines; (m, n, k) for "gemm", (experts, m, n, k) for "grouped_gemm",
        (elements,) for elementwise kinds.
    dtype
        "bf16", "fp16", "tf32", "fp32", "fp8", "fp8_block", "mxfp8", "nvfp4".
    layout
        For GEMMs "nt" (forward, y = x w^T), "nn" (data gradient), "tn" (weight gradient); for elementwise kinds
        "" (contiguous), "strided" (half-row views as in rotary embedding, or transposed), "strided_bwd", "row".
    bytes
        Bytes moved (reads plus writes); 0 lets the kind's own rule count them.
    flops
        Floating-point operations; 0 lets the kind's own rule count them.
    reserved
        SMs that it leaves to others from its start on.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str = "bf16"
    layout: str = ""
    bytes: float = 0.0
    flops: float = 0.0
    reserved: int = 0
