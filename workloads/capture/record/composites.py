"""Operators that PyTorch composes of others, as it composes them on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prestep.workloads.capture.record import attention, recurrent

aten = torch.ops.aten
#: Above autograd, so that the parts have their gradients.
KEY = "AutogradPrivateUse1"
#: Largest batch that cuDNN normalizes in training, and in evaluation.
TRAINED, EVALUATED = 880801, 65535

_library = torch.library.Library("aten", "IMPL")
#: What was installed, by operator.
RULES: dict[Any, Callable[..., Any]] = {}


def install(capability: tuple[int, int]) -> None:
    """Takes the compositions of CUDA for the device inside; ``capability``: its compute capability."""

    def attended(*arguments: Any, **options: Any) -> Any:
        return attention.choose(attention.Call(*arguments, **options), capability)

    RULES[aten.scaled_dot_product_attention.default] = attended
    RULES[aten.dropout.default] = dropout
    RULES[aten.batch_norm.default] = batch_norm
    RULES[aten.group_norm.default] = group_norm
    RULES[aten.softmax.int] = _softmax(aten._softmax.default)
    RULES[aten.log_softmax.int] = _softmax(aten._log_softmax.default)
    RULES.update(recurrent.RULES)
    for operator, rule in RULES.items():
        _library.impl(operator, rule, KEY)
    torch._C._conv_determine_backend_memory_format = _convolution_format


def _convolution_format(
    image: torch.Tensor, weight: torch.Tensor, _: Any
) -> torch.memory_format:
    """Of what a convolution returns: cuDNN keeps channels last where the image or the filter has them so."""
    last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
    wide = torch.float64 in (image.dtype, weight.dtype)
    in_order = image.is_contiguous() and weight.is_contiguous()
    if weight.dim() < 4 or wide or in_order:
        return torch.contiguous_format
    given = any(t.is_contiguous(memory_format=last) for t in (image, weight))
    return last if given else torch.contiguous_format


def dropout(tensor: torch.Tensor, share: float, train: bool) -> torch.Tensor:
    """One kernel, with the mask as its second result."""
    if not train or not share:
        return tensor
    dropped: torch.Tensor = aten.native_dropout(tensor, share, True)[0]
    return dropped


def batch_norm(
    image: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """By cuDNN where it can be, else by PyTorch's own kernels (aten/src/ATen/native/Normalization.cpp)."""
    operands = image, weight, bias, mean, variance, training, momentum, eps
    by_cudnn = cudnn_enabled and _for_cudnn(image, weight, bias, training)
    operator = aten.cudnn_batch_norm if by_cudnn else aten.native_batch_norm
    normalized: torch.Tensor = operator(*operands)[0]
    return normalized


def _for_cudnn(
    image: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
) -> bool:
    """Whether cuDNN normalizes a batch: images in fp32, or in fp16 with weights in fp32."""
    if weight is None or bias is None or image.dim() < 3:
        return False
    types = {torch.float32: weight.dtype != torch.bfloat16}
    types[torch.float16] = weight.dtype == torch.float32
    largest = TRAINED if training else EVALUATED
    return types.get(image.dtype, False) and image.shape[0] <= largest


def group_norm(
    image: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """Of an image in the usual order, copied so where its channels lie last (aten/src/ATen/native/group_norm.cpp)."""
    ordered = image.contiguous()
    batch, channels = ordered.shape[:2]
    pixels = ordered.numel() // max(1, batch * channels)
    sizes = batch, channels, pixels, groups
    normalized: torch.Tensor = aten.native_group_norm(
        ordered, weight, bias, *sizes, eps
    )[0]
    return normalized


def _softmax(operator: Any) -> Callable[..., torch.Tensor]:
    """Softmax that converts fp16 to fp32 as it goes, where that is asked for; bf16 is converted before.

    Source: ATen/native/SoftMax.cpp, softmax; recorded on an H100 (Bloom in bf16).
    """

    def softmax(
        scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        widened = dtype == torch.float32 and scores.dtype == torch.float16
        typed = scores if widened or dtype is None else scores.to(dtype)
        result: torch.Tensor = operator(typed, dim, widened)
        return result

    return softmax
