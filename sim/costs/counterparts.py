"""Attention in two vocabularies: that of models ("attention_fwd") and that of PyTorch.

In a step power bounds attention, in short runs of one operation it does not: the rows of models' kernels are of steps,
those of operations are not (`Gpu.in_step`). So a captured program and a model described by its sizes take the same
time, whichever of the two was measured on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prestep.sim.costs.estimators.attention import LATENT
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import PREFIX, Kernel

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
KINDS = {name: f"{kind}_fwd" for name, kind in ATTENTION.items()} | {
    f"{name}{BACKWARD}": f"{kind}_bwd" for name, kind in ATTENTION.items()
}
#: Formats of which the tables of models have rows.
TABLED = ("bf16", "fp16")


@dataclass(frozen=True)
class InModels:
    """The kernel of models that does what an operation of PyTorch does.

    Attributes
    ----------
    main
        The kernel.
    beside
        The operation that takes just as long as `main`, where this one differs from it (a mask, another library):
        a GPU that has both measured says by how much. None: this operation does.
    """

    main: Kernel
    beside: Kernel | None = None


def kind_in_models(kernel: Kernel) -> str:
    """The kind by which models know a kernel; of other operations their name.

    Examples
    --------
    >>> kind_in_models(Kernel("aten flex_attention", (8, 8, 8)))
    'attention_fwd'
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
    >>> in_models(Kernel("aten flex_attention", (1, 8, 8, 512, 512, 64), layout="causal")).main.kind
    'attention_fwd'
    """
    if not kernel.kind.startswith(PREFIX):
        return None
    name = kernel.kind.removeprefix(PREFIX)
    if kernel.dtype not in TABLED:
        return None
    if (library := name.removesuffix(BACKWARD)) in ATTENTION:
        return _attention(library, kernel, libraries)
    return None


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
    if own and plain:
        return InModels(same)
    flops, size = work(replace(same, dtype="bf16", layout=""))
    beside = Kernel(
        PREFIX + (library if own else CUDNN) + (BACKWARD if backward else ""),
        (batch, heads, kv_heads, side, side, dim),
        kernel.dtype,
        "_".join(filter(None, ("causal", latent))),
        size,
        flops,
    )
    return InModels(same, beside)
