"""Scaled dot-product attention by backend, forward and backward; operands lie as programs leave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both

BACKENDS = ("cudnn", "flash", "efficient", "math")
# batch, heads, key and value heads, length, head dimension
CAUSAL = (
    (4, 32, 8, 2048, 64), (2, 32, 8, 4096, 128), (8, 16, 16, 1024, 64), (4, 16, 8, 2048, 128), (1, 32, 8, 8192, 128),
    (8, 12, 12, 512, 64), (1, 64, 8, 4096, 128), (4, 8, 1, 4096, 128), (1, 32, 8, 16384, 64), (2, 8, 4, 2048, 256),
)  # fmt: skip
CAUSAL_MORE = (
    (1, 32, 8, 512, 128), (1, 32, 8, 1024, 128), (8, 32, 8, 512, 128), (2, 32, 32, 2048, 96), (1, 32, 32, 4096, 80),
    (16, 16, 16, 512, 64), (1, 16, 8, 16384, 128), (1, 8, 8, 8192, 64), (2, 32, 8, 2048, 128), (8, 32, 8, 2048, 64),
    (1, 12, 12, 1024, 64), (32, 12, 12, 1024, 64), (4, 20, 20, 2048, 80), (1, 8, 1, 16384, 128), (2, 24, 8, 3000, 128),
    (1, 4, 4, 512, 64), (64, 16, 4, 256, 64),
)  # fmt: skip
FULL = (
    (32, 12, 12, 512, 64), (128, 12, 12, 197, 64), (16, 16, 16, 512, 64), (16, 12, 12, 1500, 64), (64, 8, 8, 77, 64),
    (2, 8, 8, 4096, 40), (4, 10, 10, 1024, 80), (4, 24, 24, 1152, 64), (1, 16, 16, 16384, 64), (8, 16, 16, 2048, 128),
)  # fmt: skip

#: In fp32, which only the memory-efficient kernels take.
WHOLE = (
    (32, 12, 12, 512, 64), (16, 16, 16, 197, 64), (32, 16, 16, 197, 64), (128, 12, 12, 197, 64), (16, 12, 12, 256, 64),
    (8, 16, 16, 1024, 64), (4, 16, 16, 2048, 128), (2, 32, 32, 2048, 64), (16, 12, 12, 1500, 64), (64, 8, 8, 77, 64),
    (4, 12, 12, 128, 64), (1, 8, 8, 4096, 64),
)  # fmt: skip

#: Heads as wide as cuDNN takes them on Hopper.
WIDE = (
    (2, 8, 4, 2048, 256), (1, 8, 4, 2048, 256), (2, 8, 8, 1024, 256), (2, 16, 16, 4096, 256), (4, 8, 1, 1024, 256),
    (1, 16, 8, 8192, 256), (4, 16, 16, 1024, 192), (2, 16, 4, 2048, 160),
)  # fmt: skip


#: With a mask of each sample's: windows and padding, as transformers masks them.
MASKED = (
    (1, 32, 32, 4096, 128), (1, 16, 16, 4096, 128), (2, 16, 16, 2048, 128), (1, 32, 8, 2048, 128),
    (1, 16, 16, 8192, 128), (4, 16, 16, 1024, 128), (8, 16, 4, 1024, 128), (8, 32, 32, 512, 128),
    (2, 32, 32, 1024, 64), (8, 16, 16, 1024, 64), (1, 32, 8, 4096, 64), (2, 16, 16, 4096, 64),
    (16, 12, 12, 1024, 64), (4, 4, 4, 1024, 256), (1, 8, 8, 4096, 256),
)  # fmt: skip


def cases() -> Iterator[Case]:
    for round, shapes in ((0, CAUSAL), (1, CAUSAL_MORE)):
        for shape in shapes:
            yield from _backends(shape, {"causal": True}, round)
    for at, shape in enumerate(FULL):
        yield from _backends(shape, {"causal": False}, at // 3)
    for shape in WIDE:
        yield from _wide(shape)
    for shape in MASKED:
        yield from attention(shape, "cudnn", {"causal": False, "mask": True}, 3)
    for shape in WHOLE:
        for causal in (False, True):
            setting = {"causal": causal, "dtype": "fp32"}
            yield from attention(shape, "efficient", setting, 2)
    yield from attention(
        WHOLE[0], "efficient", {"causal": False, "dtype": "fp32", "mask": True}, 2
    )
    for shape in (CAUSAL[0], CAUSAL[3], FULL[0], FULL[2]):
        causal = shape in CAUSAL
        for backend in BACKENDS[:3]:
            yield from attention(shape, backend, {"causal": causal, "dropout": 0.1}, 2)
            yield from attention(shape, backend, {"causal": causal, "dtype": "fp16"}, 2)
            yield from attention(
                shape, backend, {"causal": causal, "layout": "bhsd"}, 2
            )
        for backend in ("cudnn", "efficient"):
            yield from attention(shape, backend, {"causal": False, "mask": True}, 1)


def _wide(shape: Sequence[int]) -> Iterator[Case]:
    for backend in ("cudnn", "efficient", "flash"):
        yield from attention(shape, backend, {"causal": True}, 3)
    yield from attention(shape, "cudnn", {"causal": False}, 3)
    yield from attention(shape, "cudnn", {"causal": False, "mask": True}, 3)


def _backends(
    shape: Sequence[int], setting: dict[str, Any], round: int
) -> Iterator[Case]:
    batch, heads, _, length, head = shape
    for at, backend in enumerate(BACKENDS):
        if (backend == "cudnn" and head > 128) or (
            backend == "math" and batch * heads * length**2 > 2**28
        ):
            continue
        yield from attention(shape, backend, setting, max(round, (0, 1, 1, 2)[at]))


def attention(
    shape: Sequence[int], backend: str, setting: dict[str, Any], round: int = 0
) -> list[Case]:
    """`setting`: causal; dropout, mask, dtype and layout where they are not the usual ones."""
    heads, kv = shape[1:3]
    setting = {"backend": backend, "dtype": "bf16", **setting}
    options = {
        "dropout_p": setting.get("dropout", 0.0),
        "is_causal": setting["causal"],
        "enable_gqa": kv != heads,
    }

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        only(backend)
        q, k, v = (_operand(on, shape, many, setting) for many in (heads, kv, kv))
        mask = _mask(on, shape, setting) if setting.get("mask") else None
        if (
            backend == "efficient" and kv != heads
        ):  # it takes no groups: programs repeat keys and values
            k, v = (_repeated(x, heads // kv) for x in (k, v))
        return (lambda: F.scaled_dot_product_attention(q, k, v, mask, **options)), (
            q,
            k,
            v,
        )

    return both("attention", "sdpa", tuple(shape), build, setting, round)


def _operand(
    on: Tensors, shape: Sequence[int], heads: int, setting: dict[str, Any]
) -> Any:
    """As a linear layer leaves it, length before heads, then transposed; layout bhsd: heads before length in memory."""
    batch, _, _, length, head = shape
    if setting.get("layout") == "bhsd":
        return on.normal(batch, heads, length, head, dtype=setting["dtype"], grad=True)
    return (
        on.normal(batch, length, heads, head, dtype=setting["dtype"])
        .transpose(1, 2)
        .requires_grad_()
    )


def _repeated(x: Any, times: int) -> Any:
    return x.detach().repeat_interleave(times, 1).requires_grad_()


def _mask(on: Tensors, shape: Sequence[int], setting: dict[str, Any]) -> Any:
    batch, _, _, length, _ = shape
    return on.normal(batch, 1, length, length, dtype=setting["dtype"])


def every_backend() -> None:
    """PyTorch chooses again."""
    for name in ("cudnn", "flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)


def only(backend: str) -> None:
    torch.backends.cuda.enable_cudnn_sdp(backend == "cudnn")
    torch.backends.cuda.enable_flash_sdp(backend == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(backend == "efficient")
    torch.backends.cuda.enable_math_sdp(backend == "math")
