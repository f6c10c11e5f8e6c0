"""Optimizers, clipping of gradients and the operations on lists of tensors they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lab.measure.case import Call, Case, Tensors

Shapes = list[tuple[int, ...]]


def _decoder(hidden: int, ffn: int, kv: int, vocab: int, layers: int) -> Shapes:
    layer = [
        (hidden, hidden),
        (kv, hidden),
        (kv, hidden),
        (hidden, hidden),
        (ffn, hidden),
        (ffn, hidden),
        (hidden, ffn),
        (hidden,),
        (hidden,),
    ]
    return [(vocab, hidden), *(layer * layers), (hidden,)]


def _convolutional(stages: int = 53) -> Shapes:
    shapes: Shapes = []
    for at in range(stages):
        width = 64 * 2 ** (at * 4 // stages)
        shapes += [
            (
                width,
                width * (1 if at % 3 == 1 else 4),
                *((3, 3) if at % 3 == 1 else (1, 1)),
            ),
            (width,),
            (width,),
        ]
    return shapes


LISTS: dict[str, Shapes] = {
    "one_1k": [(1024,)],
    "one_64k": [(2**16,)],
    "one_1m": [(2**20,)],
    "one_16m": [(2**24,)],
    "one_256m": [(2**28,)],
    "eight_8m": [(2**23,)] * 8,
    "hundred_1k": [(1024,)] * 100,
    "thousand_16k": [(2**14,)] * 1000,
    "resnet50": _convolutional(),
    "decoder_60m": _decoder(512, 2048, 512, 32000, 8),
    "decoder_350m": _decoder(1024, 3072, 512, 50304, 24),
    "decoder_1b": _decoder(2048, 8192, 512, 128256, 16),
}
KINDS: dict[str, Callable[..., Any]] = {
    "adamw": lambda ps, **how: torch.optim.AdamW(ps, lr=1e-4, **how),
    "adam": lambda ps, **how: torch.optim.Adam(ps, lr=1e-4, **how),
    "sgd_momentum": lambda ps, **how: torch.optim.SGD(
        ps, lr=1e-4, momentum=0.9, weight_decay=1e-4, **how
    ),
    "sgd": lambda ps, **how: torch.optim.SGD(ps, lr=1e-4, **how),
}
HOW: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for_loop": {"foreach": False, "fused": False},
}
# x: the list, y: another of the same shapes
ON_LISTS: dict[str, Callable[[Any, Any], Any]] = {
    "_foreach_add_scalar_": lambda x, y: torch._foreach_add_(x, 1e-8),
    "_foreach_add_list_": lambda x, y: torch._foreach_add_(x, y, alpha=0.1),
    "_foreach_mul_scalar_": lambda x, y: torch._foreach_mul_(x, 0.999),
    "_foreach_lerp_": lambda x, y: torch._foreach_lerp_(x, y, 0.1),
    "_foreach_addcmul_": lambda x, y: torch._foreach_addcmul_(x, y, y, 0.01),
    "_foreach_addcdiv_": lambda x, y: torch._foreach_addcdiv_(x, y, y, -0.01),
    "_foreach_sqrt": lambda x, y: torch._foreach_sqrt(y),
    "_foreach_div_scalars_": lambda x, y: torch._foreach_div_(x, [1.1] * len(x)),
    "_foreach_norm": lambda x, y: torch._foreach_norm(x),
    "_foreach_copy_": lambda x, y: torch._foreach_copy_(x, y),
    "_foreach_zero_": lambda x, y: torch._foreach_zero_(x),
    "_foreach_mul_tensor_": lambda x, y: torch._foreach_mul_(
        x, torch.ones((), device=x[0].device)
    ),
    "_foreach_max": lambda x, y: torch._foreach_max(x),
    "_amp_unscale": lambda x, y: torch._amp_foreach_non_finite_check_and_unscale_(
        x, torch.zeros((), device=x[0].device), torch.ones((), device=x[0].device)
    ),
    "flatten": lambda x, y: torch.cat([each.reshape(-1) for each in x]),
}


def cases() -> Iterator[Case]:
    for at, (name, shapes) in enumerate(LISTS.items()):
        for dtype in ("bf16", "fp32"):
            yield from _steps(name, shapes, dtype, at)
            for foreach in (True, False):
                setting = {
                    "list": name,
                    "dtype": dtype,
                    "how": "foreach" if foreach else "for_loop",
                }
                yield Case(
                    "foreach",
                    "clip_grad_norm_",
                    _size(shapes),
                    _clip(shapes, dtype, foreach),
                    setting,
                    round=1,
                )
            for op, function in ON_LISTS.items():
                if op == "_amp_unscale" and dtype == "bf16":
                    continue  # scaled losses are for fp16, with weights in fp32
                make = on_list(function, shapes, dtype)
                yield Case(
                    "foreach",
                    op,
                    _size(shapes),
                    make,
                    {"list": name, "dtype": dtype},
                    round=0 if dtype == "fp32" and at in (3, 8, 10) else 1,
                )


def _size(shapes: Shapes) -> tuple[int, ...]:
    return len(shapes), sum(torch.Size(shape).numel() for shape in shapes)


def _steps(name: str, shapes: Shapes, dtype: str, at: int) -> Iterator[Case]:
    for kind, make in KINDS.items():
        for how, options in HOW.items():
            if (how == "for_loop" and len(shapes) > 500) or (
                kind in ("adam", "sgd") and (at % 2 or how == "for_loop")
            ):
                continue
            usual = (name, kind) == ("resnet50", "sgd_momentum") or (
                kind == "adamw" and how != "for_loop"
            )
            setting = {"list": name, "dtype": dtype, "how": how}
            step = _step(make, options, shapes, dtype)
            yield Case(
                "optimizer", kind, _size(shapes), step, setting, round=0 if usual else 1
            )


def _step(
    kind: Callable[..., Any], options: dict[str, bool], shapes: Shapes, dtype: str
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        optimizer = kind(_with_gradients(on, shapes, dtype), **options)
        step: Call = optimizer.step
        return step

    return make


def fused_step(shapes: Shapes, dtype: str) -> Callable[[Tensors], Call]:
    """A step of AdamW with its fused kernel."""
    return _step(KINDS["adamw"], HOW["fused"], shapes, dtype)


def on_list(
    function: Callable[[Any, Any], Any], shapes: Shapes, dtype: str
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x = [on.normal(*shape, dtype=dtype) for shape in shapes]
        y = [on.positive(*shape, dtype=dtype) for shape in shapes]
        return lambda: function(x, y)

    return make


def _clip(shapes: Shapes, dtype: str, foreach: bool) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        parameters = _with_gradients(on, shapes, dtype)
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)

    return make


def _with_gradients(on: Tensors, shapes: Shapes, dtype: str) -> list[Any]:
    parameters = [on.normal(*shape, dtype=dtype, grad=True) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters
