"""What a GPU is asked to do once: a kernel by kind, shape and type."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: A kernel whose time the scenario says: its shape is nanoseconds.
STATED = "stated"
PREFIX = "aten "
#: Operations that multiply two matrices.
PRODUCTS = tuple(
    PREFIX + name
    for name in ("mm", "addmm", "addmm_", "_addmm_activation", "_scaled_mm")
)
#: Name of all products together, in tables of traced steps, files of GPUs and `prestep kernel`.
GEMM = "gemm"
#: Formats with scales, whose operands a step quantizes before; products of them are another operation.
SCALED = ("fp8", "fp8_block", "mxfp8", "nvfp4")
#: Products of as many pairs of matrices as a batch has, and of the rows of each expert with its own matrix.
BATCHES = ("aten bmm", "aten baddbmm", "aten baddbmm_")
GROUPS = ("aten _grouped_mm", "aten _scaled_grouped_mm")
#: Attention of PyTorch: operations by library, those of their gradients end in `BACKWARD`, and a mark of their layouts:
#: values are narrower than queries (latent attention).
FUSED_ATTENTION = {
    library: f"{PREFIX}_scaled_dot_product_{library}_attention"
    for library in ("cudnn", "flash", "efficient")
}
FLEX, BACKWARD, LATENT = f"{PREFIX}flex_attention", "_backward", "latent"
#: Mark of attention's gradients that are added up in one order.
ORDERED = "ordered"
#: Names of all fused attention together, forward and backward, as `GEMM` is of products.
ATTENTION = ("attention_fwd", "attention_bwd")
#: multi_tensor_apply: elements of a chunk, chunks and tensors of a launch (tensors by lists; PyTorch's source).
CHUNK, CHUNKS, TENSORS = 65536, 320, (110, 64, 48, 36, 30)
#: Elements of a product's result above which cuBLAS hands out its tiles by a counter, which a kernel of its own resets:
#: seen above two tiles (256 x 128) for each SM of an H200.
COUNTED_ABOVE = 2 * 132 * 256 * 128


@dataclass(frozen=True)
class Kernel:
    """One aten operation on the GPU (it may be several CUDA kernels back to back; see `Gpu.duration`).

    Attributes
    ----------
    kind
        "aten mm", "sum", ...; `docs/costs.md` lists the kinds and their shapes.
    shape
        Sizes, in the order the kind defines; (m, n, k) for "aten mm", (batch, m, n, k) for "aten bmm", and
        (elements,) for elementwise kinds.
    dtype
        "bf16", "fp16", "tf32", "fp32", "fp8", "fp8_block", "mxfp8", "nvfp4".
    layout
        Of products "nt" (forward, y = x w^T), "nn" (data gradient), "tn" (weight gradient); for elementwise kinds
        "" (contiguous), "strided" (half-row views as in rotary embedding, or transposed), "row".
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

    @property
    def is_product(self) -> bool:
        """Whether it multiplies two matrices."""
        return self.kind in PRODUCTS

    @property
    def is_attention(self) -> bool:
        """Whether it is fused attention of PyTorch, or of its gradients."""
        return self.kind.removesuffix(BACKWARD) in (*FUSED_ATTENTION.values(), FLEX)

    @property
    def direction(self) -> str:
        """Of fused attention, which of `ATTENTION` it is."""
        return ATTENTION[self.kind.endswith(BACKWARD)]


def product(shape: tuple[int, ...], dtype: str = "bf16", layout: str = "nt") -> Kernel:
    """A product of (m, n, k) as programs ask for it in a format.

    Examples
    --------
    >>> product((8, 4, 2)).kind, product((8, 4, 2), "fp8").kind
    ('aten mm', 'aten _scaled_mm')
    """
    name = "_scaled_mm" if dtype in SCALED else "mm"
    return Kernel(PREFIX + name, shape, dtype, layout)


def attention(
    shape: tuple[int, ...],
    dtype: str = "bf16",
    *,
    backward: bool = False,
    library: str = "cudnn",
    latent: bool = False,
    ordered: bool = False,
) -> Kernel:
    """Causal attention of (batch, heads, kv_heads, tokens, width of a head), as programs ask for it.

    Examples
    --------
    >>> attention((2, 32, 8, 4096, 128)).shape, attention((2, 32, 8, 4096, 128)).layout
    ((2, 32, 8, 4096, 4096, 128), 'causal')
    """
    *many, tokens, width = shape
    kind = FUSED_ATTENTION[library] + BACKWARD * backward
    marks = ("causal", *[LATENT] * latent, *[ORDERED] * (ordered and backward))
    return Kernel(kind, (*many, tokens, tokens, width), dtype, "_".join(marks))


def named(
    kind: str,
    shape: tuple[int, ...],
    dtype: str = "bf16",
    layout: str = "",
    size: float = 0.0,
) -> Kernel:
    """A kernel by the name that tables and commands have for it; of products and attention, as programs ask for them.

    Examples
    --------
    >>> named("gemm", (8, 4, 2), "bf16", "nn").kind
    'aten mm'
    """
    if kind == GEMM:
        return product(shape, dtype, layout)
    if kind in ATTENTION:
        way, latent = kind == ATTENTION[1], layout == LATENT
        return attention(shape, dtype, backward=way, latent=latent)
    return Kernel(kind, shape, dtype, layout, size)


def plain_product(kernel: Kernel) -> Kernel:
    """Returns the bare product of an operation: no bias, aligned rows, its own bytes. Other kernels stay as they are.

    Examples
    --------
    >>> plain_product(Kernel("aten addmm", (4096, 1024, 512), layout="nt_odd", bytes=9.0)).layout
    'nt'
    """
    if not kernel.is_product:
        return kernel
    plain = product(kernel.shape, kernel.dtype, kernel.layout[:2])
    return replace(plain, reserved=kernel.reserved)
