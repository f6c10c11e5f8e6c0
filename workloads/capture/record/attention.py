"""Which fused attention kernel PyTorch would choose on the GPU that is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nested._internal import sdpa

from prestep.workloads.torch.attention_backend import (
    WIDEST_OF_FLASH,
    fits_cudnn,
    prefers_cudnn,
)

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
#: First compute capability that FlashAttention 2 is compiled for (sdp_utils.cpp).
AMPERE = (8, 0)
#: Whether the program asked for cuDNN's kernels, and switched the others off.
only_cudnn = False


@dataclass(frozen=True)
class Call:
    """What a program asks of `scaled_dot_product_attention`; (batch, heads, length, width) of query, key and value."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def half(self) -> bool:
        return self.query.dtype in HALVES

    @property
    def width(self) -> int:
        return int(self.query.shape[-1])

    @property
    def plain(self) -> bool:
        """Batches of as many heads each, unless the program lets heads share keys (sdp_utils_cpp.h)."""
        heads = {x.shape[1] for x in self.operands if x.dim() == 4}
        return self.query.dim() == 4 and (self.enable_gqa or len(heads) == 1)

    @property
    def aligned(self) -> bool:
        """Halves in rows of whole vectors, which tensor cores take."""
        whole = self.width % 8 == 0 and self.value.shape[-1] % 8 == 0
        return self.plain and self.half and whole

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query, self.key, self.value

    @property
    def gradients(self) -> bool:
        wanted = any(tensor.requires_grad for tensor in self.operands)
        return torch.is_grad_enabled() and wanted


def choose(call: Call, capability: tuple[int, int]) -> Any:
    """`scaled_dot_product_attention` as CUDA would dispatch it (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

    Halves go to cuDNN where PyTorch prefers it (`prefers_cudnn`), else to FlashAttention without a mask; what is left
    to the memory-efficient kernels where shapes allow it. Recorded on H100 and H200 with PyTorch 2.11: cuDNN is taken
    first, also for gemma2's heads of 256 and for latent attention; heads that share a key without `enable_gqa`
    (Falcon's) are computed in separate operations. What the program switched off (`torch.nn.attention.sdpa_kernel`) is
    not taken.
    """
    drop, scale = (call.dropout_p, call.is_causal), {"scale": call.scale}
    results: Any
    if torch._C._get_cudnn_sdp_enabled() and _fits_cudnn(call, capability):
        global only_cudnn
        others = (
            torch._C._get_flash_sdp_enabled,
            torch._C._get_mem_efficient_sdp_enabled,
        )
        only_cudnn = only_cudnn or not any(enabled() for enabled in others)
        masked = *call.operands, _added(call), call.gradients
        results = aten._scaled_dot_product_cudnn_attention(
            *masked, *drop, False, **scale
        )
    elif torch._C._get_flash_sdp_enabled() and _fits_flash(call, capability):
        results = aten._scaled_dot_product_flash_attention(
            *call.operands, *drop, False, **scale
        )
    elif torch._C._get_mem_efficient_sdp_enabled() and _fits_efficient(call):
        masked = *call.operands, _bias(call), call.gradients
        results = aten._scaled_dot_product_efficient_attention(*masked, *drop, **scale)
    else:
        grouped = {**scale, "enable_gqa": call.enable_gqa}
        results = aten._scaled_dot_product_attention_math(
            *call.operands, _added(call), *drop, **grouped
        )
    return results[0]


def _fits_cudnn(call: Call, capability: tuple[int, int]) -> bool:
    fits = fits_cudnn(capability, call.width, int(call.value.shape[-1]))
    preferred = prefers_cudnn(torch.__version__, capability)
    # T5's relative positions are a mask with a gradient of its own, for which cuDNN's kernels have none.
    learnt = call.attn_mask is not None and call.attn_mask.requires_grad
    # Its gradients have no order of sums (check_cudnn_deterministic).
    ordered = torch.are_deterministic_algorithms_enabled()
    return call.aligned and fits and preferred and not learnt and not ordered


def _fits_flash(call: Call, capability: tuple[int, int]) -> bool:
    # Latent attention has heads of values that are narrower than those of queries.
    even = call.width == int(call.value.shape[-1])
    fits = even and call.width <= WIDEST_OF_FLASH and capability >= AMPERE
    return call.aligned and fits and call.attn_mask is None


def _fits_efficient(call: Call) -> bool:
    """Values may be narrower than queries; both fill vectors of 128 bits."""
    vector = 8 if call.half else 4
    widths = call.width, int(call.value.shape[-1])
    grouped = call.enable_gqa and call.query.shape[1] != call.key.shape[1]
    whole = not grouped and not any(width % vector for width in widths)
    # T5 adds a table of places to a mask, whose heads lie next to each other: no rows of keys.
    in_rows = call.attn_mask is None or call.attn_mask.stride(-1) == 1
    return call.plain and whole and in_rows


def _added(call: Call) -> torch.Tensor | None:
    """The mask as numbers that are added to the scores: of a boolean one minus infinity where it hides one.

    One pass for every call (attention.cpp, convert_boolean_attn_mask_).
    """
    mask = call.attn_mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    numbers = {"dtype": call.query.dtype, "device": call.query.device}
    return torch.where(mask, 0.0, torch.full((), -torch.inf, **numbers))


def _bias(call: Call) -> torch.Tensor | None:
    """The mask for every head."""
    mask = _added(call)
    if mask is None:
        return None
    return mask.expand(*call.query.shape[:3], call.key.shape[2])


def install() -> None:
    """Nested tensors ask C++, which knows of no GPU, which kernels may run: those that are not switched off."""

    def flash(params: Any, debug: bool = False) -> bool:
        return bool(torch._C._get_flash_sdp_enabled()) and params.query.dtype in HALVES

    sdpa.can_use_flash_attention = flash
    sdpa.can_use_efficient_attention = lambda params, debug=False: (
        torch._C._get_mem_efficient_sdp_enabled()
    )
    sdpa.can_use_cudnn_attention = lambda params, debug=False: False
