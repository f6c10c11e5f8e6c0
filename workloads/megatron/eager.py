"""Norms and activations operator by operator, as Hugging Face's modules run them without fused kernels.

Bytes are counted from the modules' own operators and autograd's formulas (transformers, models/llama/modeling_llama.py,
LlamaRMSNorm and LlamaMLP; torch, derivatives.yaml), for values in 16 bits and statistics in 32.
"""

from __future__ import annotations

from prestep.workloads.megatron.elementwise import fused
from prestep.workloads.torch.tape import Tape, Tensor

# RMSNorm forward, bytes of an element: to fp32 (6), square (8), mean (4), times the reciprocal root (8), to 16 bits
# (6), times the weight (4). Kernels: these, and the root on a number a row.
NORM, NORM_KERNELS = 36.0, 7
# Backward: times the weight (4), to fp32 (6), the product's two gradients (8, 12) and the sum of one over the row (4),
# the mean's gradient spread (4), the square's (a power 8, times two 8, times the gradient 12), the sum of both ways
# (12), to 16 bits (6).
NORM_BACK, NORM_BACK_KERNELS = 84.0, 12
KEPT = 6.0  # the input in fp32, and the normed value in 16 bits
# SwiGLU of two halves, bytes of an element of the output: SiLU (4), product (6); backward: the product's two gradients
# (12), SiLU's (6), the halves joined (8).
GATED, GATED_BACK = 10.0, 26.0


def rms_norm(t: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """An RMS norm over the last axis."""
    n = x.elements
    t.cpu("fused", NORM_KERNELS - 1)
    kernels = NORM_KERNELS, NORM_BACK_KERNELS
    moved = NORM * n, NORM_BACK * n
    return fused(t, [x, weight], x.shape, *moved, KEPT * n, 1, kernels)


def gated_activation(t: Tape, x: Tensor) -> Tensor:
    """The activation of one half of the input times the other."""
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    n = x.elements // 2
    t.cpu("fused")
    moved = GATED * n, GATED_BACK * n
    return fused(t, [x], shape, *moved, 2.0 * n, kernels=(2, 4))
