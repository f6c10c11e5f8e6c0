"""Autocast on the device inside, by CUDA's rules: which operators compute in halves, which in fp32.

PyTorch has these rules for the backends that it ships; a backend written in Python has to bring its own. The lists are
those of aten/src/ATen/autocast_mode.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prestep.workloads.operation import words

KEY = "AutocastPrivateUse1"
#: Operators that compute in halves.
LOWER = words(
    "linear matmul mm mv bmm addmm addmv addr addbmm baddbmm conv1d conv2d conv3d convolution _convolution "
    "conv_tbc prelu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input einsum chain_matmul "
    "linalg_multi_dot linalg_vecdot scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention"
)
#: Operators that compute in fp32.
FULL = words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar layer_norm native_layer_norm group_norm "
    "cosine_similarity nll_loss nll_loss2d kl_div l1_loss smooth_l1_loss huber_loss mse_loss poisson_nll_loss "
    "binary_cross_entropy_with_logits dist pdist cdist cosine_embedding_loss hinge_embedding_loss "
    "margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss "
    "renorm logsumexp frobenius_norm.dim upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
#: Operators whose result is fp32 unless the program says another type.
TYPED = words(
    "softmax.int log_softmax.int prod prod.dim_int cumprod cumsum sum sum.dim_IntList "
    "linalg_vector_norm linalg_matrix_norm"
)
#: Operators that compute in the widest type of their operands.
WIDEST = words(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
#: Functions of torch that take the name of a device.
NAMING = words(
    "set_autocast_enabled set_autocast_dtype get_autocast_dtype is_autocast_enabled"
)


class Casts:
    """Weights that were cast: once in each outermost `torch.autocast`, not once for each use."""

    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # noqa: RUF012 - one for the process, as in PyTorch

    @classmethod
    def of(cls, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype == dtype:
            return tensor
        weight = (
            tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and dtype != torch.float32
        )
        if not weight or not torch.is_autocast_cache_enabled():
            return tensor.to(dtype)
        if id(tensor) not in cls.kept:
            cls.kept[id(tensor)] = tensor, tensor.to(dtype)
        return cls.kept[id(tensor)][1]


_rules = torch.library.Library("aten", "IMPL")
_others = torch.library.Library("_", "IMPL")


def install(name: str) -> None:
    """What `torch.autocast("cuda")` sets holds for the device inside, which is called ``name``."""
    _others.fallback(torch.library.fallthrough_kernel, KEY)
    for operators, dtype_of in ((LOWER, _lower), (FULL, _full), (WIDEST, _widest)):
        for operator in operators:
            _rules.impl(operator, _rule(operator, dtype_of), KEY)
    for operator in TYPED:
        _rules.impl(operator, _typed(operator), KEY)
    for function in NAMING:
        setattr(torch, function, _renaming(getattr(torch, function), name))
    torch.clear_autocast_cache = _forgetting(torch.clear_autocast_cache)


def _renaming(function: Any, name: str) -> Any:
    def renamed(*arguments: Any) -> Any:
        return function(*(name if a == "cuda" else a for a in arguments))

    return renamed


def _forgetting(function: Callable[[], None]) -> Callable[[], None]:
    def forget() -> None:
        Casts.kept.clear()
        function()

    return forget


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    )


def _rule(name: str, dtype_of: Callable[[list[torch.Tensor]], torch.dtype]) -> Any:
    """An operator that casts its operands before it runs."""
    operator = _operator(name)

    def run(*arguments: Any, **options: Any) -> Any:
        with _without_autocast():
            dtype = dtype_of(_cast_able((arguments, options)))

            def cast(value: Any) -> Any:
                return Casts.of(value, dtype) if _is_cast_able(value) else value

            arguments, options = torch.utils._pytree.tree_map(
                cast, (arguments, options)
            )
            return operator(*arguments, **options)

    return run


def _typed(name: str) -> Any:
    """An operator that is told to compute in fp32."""
    operator = _operator(name)

    def run(*arguments: Any, **options: Any) -> Any:
        with _without_autocast():
            halves = _is_cast_able(arguments[0]) and arguments[0].dtype != torch.float32
            said = options.get("dtype") is not None or any(
                isinstance(a, torch.dtype) for a in arguments
            )
            if halves and not said:
                options["dtype"] = torch.float32
            return operator(*arguments, **options)

    return run


def _is_cast_able(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device.type == "cuda"
    )


def _cast_able(values: Any) -> list[torch.Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(values) if _is_cast_able(v)]


def _lower(_: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("cuda")


def _full(_: list[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    if any(tensor.dtype == torch.float32 for tensor in tensors):
        return torch.float32
    return torch.get_autocast_dtype("cuda")
