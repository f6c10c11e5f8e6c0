"""The same kernel in two vocabularies: that of models ("gemm", "rms_norm_fwd") and that of PyTorch ("aten mm").

Both directions are needed. A GPU whose operations of PyTorch were measured says by how much it differs from another
that was (`counterpart`). All other GPUs price an operation as the kernel of a model that does the same (`in_models`),
so a captured program and a model described by its sizes take the same time. What counts is what a kernel does.
Operations in layouts that models do not know (rows that are repeated, images in planes) stay as they are.

Products and attention are no counterparts of models' kernels: in a step power bounds them, in short runs of one
operation it does not (`Gpu.in_step`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prestep.sim.costs.aten import of_each_expert
from prestep.sim.costs.estimators.attention import LATENT
from prestep.sim.costs.kinds import DTYPE_BYTES, STREAM_PASSES, work
from prestep.sim.graph.kernel import COUNTED_ABOVE, PREFIX, PRODUCTS, Kernel

#: Operations of kinds over rows and columns, over words, and of convolutions.
OPERATIONS = {
    "rms_norm_fwd": "_fused_rms_norm",
    "rms_norm_bwd": "_fused_rms_norm_backward",
    "rms_norm_bwd_input": "_fused_rms_norm_backward",
    "rms_norm_bwd_weight": "_fused_rms_norm_backward",
    "layer_norm_fwd": "native_layer_norm",
    "layer_norm_bwd": "native_layer_norm_backward",
    "layer_norm_bwd_input": "native_layer_norm_backward",
    "layer_norm_bwd_weight": "native_layer_norm_backward",
    "softmax": "_softmax",
    "softmax_bwd": "_softmax_backward_data",
    "log_softmax_fwd": "_log_softmax",
    "log_softmax_bwd": "_log_softmax_backward_data",
    "batchnorm_fwd": "native_batch_norm",
    "batchnorm_bwd": "native_batch_norm_backward",
    "embedding_fwd": "embedding",
    "embedding_bwd": "embedding_dense_backward",
    "nll_loss_fwd": "nll_loss_forward",
    "nll_loss_bwd": "nll_loss_backward",
    "conv_fwd": "convolution",
    "conv_dgrad": "convolution_backward",
    "conv_wgrad": "convolution_backward",
}
#: Kinds whose images lie with channels last.
CHANNELS_LAST = tuple(k for k in OPERATIONS if k.startswith(("batchnorm", "conv")))
#: AdamW reads and writes four lists of tensors.
ADAMW, LISTS = "_fused_adamw_", "4"
ADAMW_BYTES = 14.0  # of an element in 16 bits: seven passes
#: Kinds of models over rows: the whole backward pass of a norm comes before its parts.
OVER_ROWS = {
    OPERATIONS[kind]: kind
    for kind in (
        *("rms_norm_fwd", "rms_norm_bwd", "layer_norm_fwd", "layer_norm_bwd"),
        *("softmax", "softmax_bwd", "log_softmax_fwd", "log_softmax_bwd"),
        *("embedding_fwd", "nll_loss_fwd"),
    )
}
#: Parts of a norm's backward pass that were not measured as operations, by the layout that says which gradients it has.
HALVES = {
    ("_fused_rms_norm_backward", "untrained"): "rms_norm_bwd_input",
    ("_fused_rms_norm_backward", "weights"): "rms_norm_bwd_weight",
    ("native_layer_norm_backward", "weights"): "layer_norm_bwd_weight",
}
#: Elementwise operations over whole tensors that mean the same in both.
ALIKE = (
    *("add", "mul", "silu", "silu_backward", "gelu", "relu", "threshold_backward"),
    *("copy", "fill"),
)
#: Operations on halves of heads, and how models name their layouts: what they read in a step was just written.
ROTARY = {
    **{(name, "strided"): "strided" for name in ("mul", "neg", "cat")},
    ("cat", "inner"): "",
}
#: Gradients whose operation zeroes the whole result first, which models do by a kernel of its own.
ZEROED = {OPERATIONS[kind]: kind for kind in ("embedding_bwd", "nll_loss_bwd")}
CUDNN = "_scaled_dot_product_cudnn_attention"
ATTENTION = {
    CUDNN: "attention",
    "_scaled_dot_product_flash_attention": "flash2_attention",
    "_scaled_dot_product_efficient_attention": "attention",
    "flex_attention": "attention",
}
#: Libraries of which models have kernels; the others are read beside cuDNN's.
OWN_LIBRARIES = (CUDNN, "_scaled_dot_product_flash_attention")
BACKWARD = "_backward"
KINDS = (
    {"convolution": "conv_fwd", f"convolution{BACKWARD}": "conv_wgrad"}
    | OVER_ROWS
    | ZEROED
    | PRODUCTS
    | {ADAMW: "adamw"}
    | {name: f"{kind}_fwd" for name, kind in ATTENTION.items()}
    | {f"{name}{BACKWARD}": f"{kind}_bwd" for name, kind in ATTENTION.items()}
)
#: The kernel that resets the counter of a product's tiles; cuDNN's attention has one, too.
RESET = Kernel("memset", (4,), bytes=4.0)
#: Formats of which the tables of models have rows; of products all formats have a tile model.
TABLED = ("bf16", "fp16")


@dataclass(frozen=True)
class InModels:
    """What kernels of models do of an operation of PyTorch.

    Attributes
    ----------
    kernels
        One after the other; the last one is what the operation is named after.
    beside
        The operation that takes just as long as `kernels`, where this one differs from it (a mask, another library):
        a GPU that has both measured says by how much. None: this operation does.
    """

    kernels: tuple[Kernel, ...]
    beside: Kernel | None = None

    @property
    def main(self) -> Kernel:
        """The kernel that the operation is named after."""
        return self.kernels[-1]


def counterpart(kernel: Kernel) -> Kernel | None:
    """The operation as which a checked kernel of a model runs; None where none is like it."""
    kind, shape, layout = kernel.kind, kernel.shape, ""
    if kind == "adamw":
        name, layout, shape = ADAMW, LISTS, (shape[1], shape[0])
    elif kind in OPERATIONS:
        name = OPERATIONS[kind]
        layout = "channels_last" if kind in CHANNELS_LAST else ""
        shape = (*shape, 1) if kind.startswith("conv") else shape
    elif kind in STREAM_PASSES:
        name, layout, shape = kind, kernel.layout, (math.prod(shape),)
    else:
        return None
    flops, size = work(kernel)
    return Kernel(PREFIX + name, shape, kernel.dtype, layout, size, flops)


def kind_in_models(kernel: Kernel) -> str:
    """The kind by which models know a kernel; of other operations their name.

    Examples
    --------
    >>> kind_in_models(Kernel("aten mm", (8, 8, 8)))
    'gemm'
    >>> kind_in_models(Kernel("aten tanh", (8,)))
    'tanh'
    """
    if not kernel.kind.startswith(PREFIX):
        return kernel.kind
    name = kernel.kind.removeprefix(PREFIX)
    return KINDS.get(name, name)


def in_models(
    kernel: Kernel, libraries: tuple[str, ...] = OWN_LIBRARIES
) -> InModels | None:
    """An operation of PyTorch as models have it; None for kernels of models and for what these do not know.

    `libraries`: whose attention models have times of; others' is read beside cuDNN's.

    Examples
    --------
    >>> in_models(Kernel("aten addmm", (4096, 1024, 512), layout="nt_odd")).main
    Kernel(kind='gemm', shape=(4096, 1024, 512), dtype='bf16', layout='nt', bytes=0.0, flops=0.0, reserved=0)
    """
    if not kernel.kind.startswith(PREFIX):
        return None
    name = kernel.kind.removeprefix(PREFIX)
    if name in PRODUCTS:
        return _product(PRODUCTS[name], kernel)
    if (half := HALVES.get((name, kernel.layout))) is not None:
        # As many bytes of wider numbers lie in longer rows.
        rows, columns = kernel.shape
        columns = int(columns * DTYPE_BYTES[kernel.dtype] / 2)
        return InModels((Kernel(half, (rows, columns), "bf16"),))
    if kernel.dtype not in TABLED:
        return None
    if (library := name.removesuffix(BACKWARD)) in ATTENTION:
        return _attention(library, kernel, libraries)
    if name == ADAMW and kernel.layout.startswith(LISTS) and len(kernel.shape) == 2:
        # Moments may be wider than parameters: what moves counts.
        tensors, _ = kernel.shape
        elements = round(kernel.bytes / ADAMW_BYTES)
        layout = kernel.layout.removeprefix(LISTS).strip("_")
        return InModels((Kernel("adamw", (elements, tensors), kernel.dtype, layout),))
    whole = (math.prod(kernel.shape),)
    if name in ALIKE and not kernel.layout:
        return InModels((Kernel(name, whole, kernel.dtype, bytes=kernel.bytes),))
    if (name, kernel.layout) in ROTARY:
        halves = ROTARY[name, kernel.layout]
        return InModels((Kernel(name, whole, kernel.dtype, halves),))
    if name.removesuffix(BACKWARD) == "convolution":
        return _convolution(kernel)
    return _over_rows(name, kernel)


def _convolution(kernel: Kernel) -> InModels | None:
    """Of a convolution with channels last in one group; backward does one pass for the image, one for the filter.

    The first layer of a network has no gradient of its image: its operation counts the work of one pass.
    """
    if kernel.layout != "channels_last" or len(kernel.shape) != 9:
        return None
    *shape, groups = kernel.shape
    same = Kernel("conv_fwd", tuple(shape), kernel.dtype)
    if groups > 1:
        return None
    if not kernel.kind.endswith(BACKWARD):
        return InModels((same,))
    filters = replace(same, kind="conv_wgrad")
    if kernel.flops and kernel.flops < 1.5 * work(same)[0]:
        return InModels((filters,))
    return InModels((replace(same, kind="conv_dgrad"), filters))


def _product(kind: str, kernel: Kernel) -> InModels | None:
    """Of a product; rows of a batch and of experts are those of all of them together."""
    shape, layout = kernel.shape, kernel.layout[:2]
    if len(shape) != (3 if kind.startswith("gemm") else 4):
        return None
    if kernel.dtype not in DTYPE_BYTES:
        return None
    if kind == "bmm":
        batch, m, n, k = shape
        shape = batch, batch * m, n, k
    elif kind == "grouped_gemm":
        shape = of_each_expert(kernel)
    same = Kernel(kind, shape, kernel.dtype, layout)
    counted = kind.startswith("gemm") and shape[0] * shape[1] > COUNTED_ABOVE
    if counted and kernel.dtype in TABLED:
        return InModels((RESET, same))
    return InModels((same,))


def _attention(
    library: str, kernel: Kernel, libraries: tuple[str, ...]
) -> InModels | None:
    """Of attention: causal over as many keys as queries, with what sets the operation apart from it."""
    if len(kernel.shape) != 6:
        return None
    batch, heads, kv_heads, queries, keys, dim = kernel.shape
    backward = kernel.kind.endswith(BACKWARD)
    marks = kernel.layout.split("_")
    latent = LATENT if LATENT in marks else ""
    plain = queries == keys and [m for m in marks if m != LATENT] == ["causal"]
    side = queries if queries == keys else max(1, round(math.sqrt(queries * keys)))
    own = library in libraries
    name = ATTENTION[library if own else CUDNN]
    kind = f"{name}_{'bwd' if backward else 'fwd'}"
    same = Kernel(kind, (batch, heads, kv_heads, side, dim), kernel.dtype, latent)
    kernels = (RESET, same) if library == CUDNN else (same,)
    if own and plain:
        return InModels(kernels)
    flops, size = work(replace(same, dtype="bf16", layout=""))
    beside = Kernel(
        PREFIX + (library if own else CUDNN) + (BACKWARD if backward else ""),
        (batch, heads, kv_heads, side, side, dim),
        kernel.dtype,
        "_".join(filter(None, ("causal", latent))),
        size,
        flops,
    )
    return InModels(kernels, beside)


def _over_rows(name: str, kernel: Kernel) -> InModels | None:
    """Of norms, softmax, losses and lookups."""
    shape, dtype = kernel.shape, kernel.dtype
    kind = OVER_ROWS.get(name) or ZEROED.get(name)
    if kind == "layer_norm_bwd" and kernel.layout == "untrained":
        kind = "layer_norm_bwd_input"
    elif kernel.layout:
        return None
    words = kind is not None and kind.startswith("embedding")
    if kind is None or len(shape) != (3 if words else 2):
        return None
    same = Kernel(kind, shape, dtype)
    if name not in ZEROED:
        return InModels((same,))
    elements = math.prod(shape[1:] if words else shape)
    fill = Kernel("fill", (elements,), dtype, bytes=DTYPE_BYTES[dtype] * elements)
    return InModels((fill, same))
