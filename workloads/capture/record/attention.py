"""Which fused attention kernel PyTorch would choose on the GPU that is meant."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    hopper: bool,
) -> Any:
    """`scaled_dot_product_attention` as CUDA would dispatch it (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

    Halves go to cuDNN on Hopper and later, else to FlashAttention without a mask; what is left to the memory-efficient
    kernels where shapes allow it. Recorded on H100 and H200 with PyTorch 2.11: cuDNN is taken first.
    """
    half, width = query.dtype in HALVES, query.shape[-1]
    fits = query.dim() == 4 and width == value.shape[-1]
    gradients = torch.is_grad_enabled() and any(
        t.requires_grad for t in (query, key, value)
    )
    if half and hopper and fits and width <= 128 and width % 8 == 0:
        return aten._scaled_dot_product_cudnn_attention(
            query,
            key,
            value,
            attn_mask,
            gradients,
            dropout_p,
            is_causal,
            False,
            scale=scale,
        )[0]
    if half and fits and attn_mask is None and width <= 256 and width % 8 == 0:
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if fits and (not enable_gqa or query.shape[1] == key.shape[1]) and width % 4 == 0:
        bias = attn_mask
        if bias is not None:
            bias = bias.expand(*query.shape[:3], key.shape[2])
            if bias.dtype == torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(
                    bias.logical_not(), float("-inf")
                )
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, gradients, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )[0]
